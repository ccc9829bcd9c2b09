//go:build !noasm && !race

#include "textflag.h"

// func Publish(p *atomic.Uint64, v uint64)
TEXT ·Publish(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)    // in order with what was stored before
	RET

// func Fetch(p *atomic.Uint64)
TEXT ·Fetch(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func Own(p *atomic.Uint64)
TEXT ·Own(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which the assembler does not know
	RET
