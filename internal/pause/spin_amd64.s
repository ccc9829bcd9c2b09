//go:build !noasm

#include "textflag.h"

// func Spin(n int)
TEXT ·Spin(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	JMP  test

loop:
	PAUSE
	DECQ CX

test:
	TESTQ CX, CX
	JGT   loop
	RET
