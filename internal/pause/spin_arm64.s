//go:build !noasm

#include "textflag.h"

// func Spin(n int)
TEXT ·Spin(SB), NOSPLIT, $0-8
	MOVD n+0(FP), R0
	B    test

loop:
	YIELD
	SUB $1, R0

test:
	CMP $0, R0
	BGT loop
	RET
