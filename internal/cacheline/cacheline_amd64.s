//go:build !noasm && !race

#include "textflag.h"

// func Publish(p *atomic.Uint64, v uint64)
TEXT ·Publish(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)    // in order with what was stored before
	RET

// func stream(dst, src *byte, n int)
//
// The first and the last line are stored as usual, wherever they begin; between them are whole lines of dst.
TEXT ·stream(SB), NOSPLIT, $0-24
	MOVQ  dst+0(FP), DI
	MOVQ  src+8(FP), SI
	MOVQ  n+16(FP), CX
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVOU X0, (DI)
	MOVOU X1, 16(DI)
	MOVOU X2, 32(DI)
	MOVOU X3, 48(DI)
	MOVOU -64(SI)(CX*1), X0
	MOVOU -48(SI)(CX*1), X1
	MOVOU -32(SI)(CX*1), X2
	MOVOU -16(SI)(CX*1), X3
	MOVOU X0, -64(DI)(CX*1)
	MOVOU X1, -48(DI)(CX*1)
	MOVOU X2, -32(DI)(CX*1)
	MOVOU X3, -16(DI)(CX*1)
	MOVQ  DI, AX
	NEGQ  AX
	ANDQ  $63, AX              // to the next line of dst
	ADDQ  AX, DI
	ADDQ  AX, SI
	SUBQ  AX, CX
	SHRQ  $6, CX               // lines; at least one

line:
	PREFETCHT0 512(SI)
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JNE    line
	SFENCE                     // such stores are not in order with others
	RET
