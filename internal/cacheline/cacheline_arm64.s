//go:build !noasm && !race

#include "textflag.h"

// func Publish(p *atomic.Uint64, v uint64)
TEXT ·Publish(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	STLR R1, (R0)
	RET
