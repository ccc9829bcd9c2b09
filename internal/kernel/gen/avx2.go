package main

import "fmt"

// The one NaN of the kernels: see the comment of package kernel.
const (
	nan64 = 0x7FF8000000000000
	nan32 = 0x7FC00000
	sign  = 1 << 63
)

var avx2 = set{
	name: "AVX2", file: "avx2", text: "AVX2", vector: 32, letter: "Y", stream: "VMOVNTDQ",
	body: func(op string, e element) body {
		if e.float {
			return avx2Float(op, e)
		}
		return avx2Integer(op, e)
	},
	constant: func(w *writer, e element, value uint64) {
		w.ins(fmt.Sprintf("MOVQ $%#016x, AX", value), "VMOVQ AX, X15")
		if e.size == 8 {
			w.ins("VPBROADCASTQ X15, Y15")
		} else {
			w.ins("VPBROADCASTD X15, Y15")
		}
	},
	// One element at a time in a register of 128 bits, whose other lanes are 0:
	// masked stores are slow on some processors.
	rest: func(w *writer, e element, b body) {
		move := "VMOVSD"
		if e.size == 4 {
			move = "VMOVSS"
		}
		w.loop("element", b, 1, "X", move, move, "")
		w.ins(fmt.Sprintf("ADDQ $%d, R8", e.size), "DECQ CX", "JNZ element")
	},
}

// fp is the suffix of instructions on vectors of e, and its NaN.
func fp(e element) (suffix string, nan uint64) {
	if e.size == 8 {
		return "PD", nan64
	}
	return "PS", nan32
}

// Sums and products keep a NaN a NaN, so it becomes the one NaN at the end. The
// instructions for the minimum give their second operand, here the left one,
// when one is a NaN or both are zeros; so with operands in both orders they
// give both, and differ only then. Or keeps -0 and every NaN; and keeps
// +0, but may lose a NaN, which is put back as all ones.
func avx2Float(op string, e element) body {
	p, nan := fp(e)
	b := body{
		constant: nan,
		last:     []string{"VCMP" + p + " $3, @A, @A, @T", "VBLENDV" + p + " @T, @C, @A, @A"},
		check: []string{"VCMP" + p + " $3, Y0, Y1, @T", "VCMP" + p + " $3, Y2, Y3, @U", "VOR" + p + " @T, @U, @T",
			"VMOVMSK" + p + " @T, AX", "TESTL AX, AX"},
	}
	switch op {
	case "Sum":
		b.step = []string{"VADD" + p + " @S, @A, @A"}
	case "Prod":
		b.step = []string{"VMUL" + p + " @S, @A, @A"}
	case "Min":
		b.step = []string{"VMIN" + p + " @S, @A, @T", "VMIN" + p + " @A, @S, @U", "VOR" + p + " @T, @U, @A"}
		b.register = true
	case "Max":
		b.step = []string{"VCMP" + p + " $3, @S, @A, @V", "VMAX" + p + " @S, @A, @T", "VMAX" + p + " @A, @S, @U",
			"VAND" + p + " @T, @U, @A", "VOR" + p + " @V, @A, @A"}
		b.register = true
	}
	return b
}

func avx2Integer(op string, e element) body {
	if e.size == 4 {
		kind := "SD"
		if e.signed != "" {
			kind = "UD"
		}
		return body{step: []string{map[string]string{"Sum": "VPADDD", "Prod": "VPMULLD", "Min": "VPMIN" + kind, "Max": "VPMAX" + kind}[op] + " @S, @A, @A"}}
	}
	left, right := "@A", "@S" // of the comparison: true takes the source
	var flip []string
	if e.signed != "" { // the comparison is signed
		flip = []string{"VPXOR @C, @A, @T", "VPXOR @C, @S, @U"}
		left, right = "@T", "@U"
	}
	switch op {
	case "Sum":
		return body{step: []string{"VPADDQ @S, @A, @A"}}
	case "Prod":
		// The high halves' product is beyond 64 bits.
		return body{register: true, step: []string{
			"VPSRLQ $32, @A, @T", "VPMULUDQ @S, @T, @T",
			"VPSRLQ $32, @S, @U", "VPMULUDQ @A, @U, @U",
			"VPADDQ @T, @U, @T", "VPSLLQ $32, @T, @T",
			"VPMULUDQ @S, @A, @A", "VPADDQ @T, @A, @A",
		}}
	case "Max":
		left, right = right, left
	}
	// In Go's order of operands, VPCMPGTQ b, a, m is m = a > b.
	return body{register: true, constant: sign, step: append(flip, "VPCMPGTQ "+right+", "+left+", @V", "VBLENDVPD @V, @S, @A, @A")}
}
