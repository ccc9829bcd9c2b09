//go:build !purego

#include "textflag.h"

// func sumFloat64AVX2(inout, in []float64)
TEXT ·sumFloat64AVX2(SB), NOSPLIT, $0-48
	MOVQ inout_base+0(FP), DI
	MOVQ inout_len+8(FP), CX
	MOVQ in_base+24(FP), SI
	SHRQ $4, CX
	JZ   done

loop:
	VMOVUPD 0(DI), Y0
	VMOVUPD 32(DI), Y1
	VMOVUPD 64(DI), Y2
	VMOVUPD 96(DI), Y3
	VADDPD  0(SI), Y0, Y0
	VADDPD  32(SI), Y1, Y1
	VADDPD  64(SI), Y2, Y2
	VADDPD  96(SI), Y3, Y3
	VMOVUPD Y0, 0(DI)
	VMOVUPD Y1, 32(DI)
	VMOVUPD Y2, 64(DI)
	VMOVUPD Y3, 96(DI)
	ADDQ    $128, DI
	ADDQ    $128, SI
	DECQ    CX
	JNZ     loop
	VZEROUPPER

done:
	RET
