package tm

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// The encoding that PBS calls DIS. An integer is a sign and its digits; if there is more than one
// digit, their count, without a sign and encoded by the same rule, goes before it: 9 is +9, 123 is 3+123, and
// 1234567890 is 210+1234567890. A string is its length and its bytes.

// appendInt appends an integer.
func appendInt(b []byte, n int64) []byte {
	sign := byte('+')
	digits := strconv.FormatInt(n, 10)
	if n < 0 {
		sign = '-'
		digits = digits[1:]
	}
	var counts []string
	for c := len(digits); c > 1; {
		s := strconv.Itoa(c)
		counts = append(counts, s)
		c = len(s)
	}
	for i := len(counts) - 1; i >= 0; i-- {
		b = append(b, counts[i]...)
	}
	return append(append(b, sign), digits...)
}

// appendString appends a string.
func appendString(b []byte, s string) []byte {
	return append(appendInt(b, int64(len(s))), s...)
}

type byteReader interface {
	io.Reader
	io.ByteReader
}

const (
	maxDigits = 18 // of any number that there is in the protocol
	maxString = 64 << 10
)

// readInt reads an integer.
func readInt(r byteReader) (int64, error) {
	for count := 1; ; {
		c, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		digits := make([]byte, 0, maxDigits)
		signed := c == '+' || c == '-'
		if !signed {
			digits = append(digits, c)
		}
		for len(digits) < count {
			d, err := r.ReadByte()
			if err != nil {
				return 0, unexpected(err)
			}
			digits = append(digits, d)
		}
		n := int64(0)
		for _, d := range digits {
			if d < '0' || d > '9' {
				if signed {
					digits = append([]byte{c}, digits...)
				}
				return 0, fmt.Errorf("tm: %q where a number should be", digits)
			}
			n = 10*n + int64(d-'0')
		}
		switch {
		case c == '-':
			return -n, nil
		case signed:
			return n, nil
		case n < 2 || n > maxDigits || int(n) <= count:
			return 0, fmt.Errorf("tm: a number of %d digits", n)
		}
		count = int(n)
	}
}

// readString reads a string.
func readString(r byteReader) (string, error) {
	n, err := readInt(r)
	if err != nil {
		return "", err
	}
	if n < 0 || n > maxString {
		return "", fmt.Errorf("tm: a string of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", unexpected(err)
	}
	return string(b), nil
}

// unexpected turns an end into one that should not be here.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
