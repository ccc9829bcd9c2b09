package main

import "fmt"

var avx512 = set{
	name: "AVX512", file: "avx512", text: "AVX-512 F and DQ", vector: 64, letter: "Z", stream: "VMOVNTDQ",
	body: func(op string, e element) body {
		if e.float {
			return avx512Float(op, e)
		}
		return avx512Integer(op, e)
	},
	constant: func(w *writer, e element, value uint64) {
		w.ins(fmt.Sprintf("MOVQ $%#016x, AX", value))
		if e.size == 8 {
			w.ins("VPBROADCASTQ AX, Z15")
		} else {
			w.ins("VPBROADCASTD AX, Z15")
		}
	},
	// One pass under a mask.
	rest: func(w *writer, e element, b body) {
		w.ins("MOVL $1, AX", "SHLL CX, AX", "DECL AX", "KMOVW AX, K7")
		load := w.set.load(e)
		w.loop("masked", b, 1, "Z", load, load, "K7")
	},
}

// The instruction with ranges has the right order of zeros, and takes a number
// rather than a NaN, so that NaNs are put in behind it.
func avx512Float(op string, e element) body {
	p, nan := fp(e)
	put := "VMOVA" + p + " @C, @K, @A"
	b := body{constant: nan}
	switch op {
	case "Sum", "Prod":
		b.step = []string{map[string]string{"Sum": "VADD", "Prod": "VMUL"}[op] + p + " @S, @A, @A"}
		b.last = []string{"VCMP" + p + " $3, @A, @A, @K", put}
		b.check = []string{"VCMP" + p + " $3, Z0, Z1, K1", "VCMP" + p + " $3, Z2, Z3, K2", "KORTESTW K1, K2"}
	case "Min", "Max":
		b.step = []string{"VCMP" + p + " $3, @S, @A, @K", fmt.Sprintf("VRANGE%s $%d, @S, @A, @A", p, map[string]int{"Min": 4, "Max": 5}[op]), put}
		b.register = true
	}
	return b
}

func avx512Integer(op string, e element) body {
	width := map[int]string{8: "Q", 4: "D"}[e.size]
	kind := "S"
	if e.signed != "" {
		kind = "U"
	}
	return body{step: []string{map[string]string{"Sum": "VPADD", "Prod": "VPMULL", "Min": "VPMIN" + kind, "Max": "VPMAX" + kind}[op] + width + " @S, @A, @A"}}
}
