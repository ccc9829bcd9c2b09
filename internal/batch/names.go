package batch

import (
	"fmt"
	"strconv"
	"strings"
)

// maxNames bounds what one list may mean, so that a typing error in a range is
// an error and not a machine out of memory.
const maxNames = 64 << 10

// Expand returns the names that a list such as n[1-3,07],login or
// rack[0-1]node[2-3]-ib means. A token may have several groups; the rightmost
// runs fastest. Numbers keep the width of the lower bound. Names stay in the order of
// the list, and may come twice.
func Expand(list string) ([]string, error) {
	tokens, err := splitList(list)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range tokens {
		names, err := expandToken(t, maxNames-len(out))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", list, err)
		}
		for _, n := range names {
			if err := checkName(n); err != nil {
				return nil, fmt.Errorf("%q: %w", list, err)
			}
		}
		out = append(out, names...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%q has no host", list)
	}
	return out, nil
}

// splitList cuts a list at commas and blanks outside of brackets.
func splitList(list string) ([]string, error) {
	var out []string
	depth, start := 0, 0
	end := func(i int, comma bool) error {
		if t := list[start:i]; t != "" {
			out = append(out, t)
		} else if comma {
			return fmt.Errorf("%q has a comma without a name before it", list)
		}
		return nil
	}
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '[':
			if depth++; depth > 1 {
				return nil, fmt.Errorf("%q has a [ within [ ]", list)
			}
		case c == ']':
			if depth--; depth < 0 {
				return nil, fmt.Errorf("%q has a ] without a [", list)
			}
		case depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\n'):
			if err := end(i, c == ','); err != nil {
				return nil, err
			}
			start = i + 1
		}
	}
	if depth != 0 {
		return nil, fmt.Errorf("%q has a [ without a ]", list)
	}
	return out, end(len(list), false)
}

// expandToken expands one name with groups to at most limit names.
func expandToken(token string, limit int) ([]string, error) {
	prefix, rest, ok := strings.Cut(token, "[")
	if !ok {
		if limit < 1 {
			return nil, fmt.Errorf("more than %d names", maxNames)
		}
		return []string{token}, nil
	}
	group, rest, _ := strings.Cut(rest, "]")
	numbers, err := expandGroup(group, limit)
	if err != nil {
		return nil, err
	}
	tails, err := expandToken(rest, limit)
	if err != nil {
		return nil, err
	}
	if len(numbers)*len(tails) > limit {
		return nil, fmt.Errorf("more than %d names", maxNames)
	}
	out := make([]string, 0, len(numbers)*len(tails))
	for _, n := range numbers {
		for _, t := range tails {
			out = append(out, prefix+n+t)
		}
	}
	return out, nil
}

// expandGroup expands what is between brackets: 1-3,07.
func expandGroup(group string, limit int) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(group, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		a, errA := digits(low)
		b, errB := digits(high)
		switch {
		case errA != nil || errB != nil:
			return nil, fmt.Errorf("[%s]: %q is neither a number nor a range such as 1-3", group, part)
		case b < a:
			return nil, fmt.Errorf("[%s]: the range %q goes down", group, part)
		case b-a >= uint64(limit-len(out)):
			return nil, fmt.Errorf("more than %d names", maxNames)
		}
		for v := a; ; v++ {
			out = append(out, fmt.Sprintf("%0*d", len(low), v))
			if v == b {
				break
			}
		}
	}
	return out, nil
}

// digits reads an unsigned number without a sign.
func digits(s string) (uint64, error) {
	if s == "" || len(s) > 18 || strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(s, 10, 64)
}

// Compress returns a list that [Expand] turns back into names, in the same order:
// n1, n2, n3, login become n[1-3],login.
func Compress(names []string) string {
	var b strings.Builder
	for i := 0; i < len(names); {
		prefix, low := splitNumber(names[i])
		// As many as go on with the same letters before a number.
		var parts []string
		j := i
		for low != "" && j < len(names) {
			p, n := splitNumber(names[j])
			if p != prefix || n == "" {
				break
			}
			end := j + 1
			last := n
			for end < len(names) {
				p, m := splitNumber(names[end])
				if p != prefix || m != next(last, len(n)) {
					break
				}
				last = m
				end++
			}
			part := n
			if end > j+1 {
				part += "-" + last
			}
			parts = append(parts, part)
			j = end
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if j <= i+1 {
			b.WriteString(names[i])
			i++
			continue
		}
		b.WriteString(prefix + "[" + strings.Join(parts, ",") + "]")
		i = j
	}
	return b.String()
}

// splitNumber cuts the number off the end of a name. A longer one than fits is
// no number.
func splitNumber(name string) (prefix, number string) {
	i := len(name)
	for i > 0 && name[i-1] >= '0' && name[i-1] <= '9' {
		i--
	}
	if len(name)-i > 18 {
		return name, ""
	}
	return name[:i], name[i:]
}

// next returns the number after s, as a range that began with that width writes
// it.
func next(s string, width int) string {
	n, err := digits(s)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%0*d", width, n+1)
}
