package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// command carries out one line of the control socket on the directions it
// names, and returns the answer: one line that starts with "ok" or "error".
//
//	[a|b] set KEY=VALUE...   keys: drop, dup, reorder (0 to 1), delay (like 5ms), match (roce, ack, data, all)
//	[a|b] drop-next N        the next N frames that match are lost
//	[a|b] cut                nothing passes any more
//	[a|b] join               undoes cut
//	[a|b] clear              back to a wire that does nothing
//	[a|b] stats              the counters
//
// a and b stand for the frames which this end sends; without one of them a
// command is for both directions.
func command(line string, directions []*direction) string {
	words := strings.Fields(line)
	if len(words) > 0 && (words[0] == "a" || words[0] == "b") {
		directions = slices.DeleteFunc(slices.Clone(directions), func(d *direction) bool { return d.name != words[0] })
		words = words[1:]
	}
	if len(words) == 0 {
		return "error: no command; there are set, drop-next, cut, join, clear and stats"
	}
	verb, arguments := words[0], words[1:]
	switch verb {
	case "set", "drop-next":
	default:
		if len(arguments) != 0 {
			return fmt.Sprintf("error: %s takes no argument, not %q", verb, arguments[0])
		}
	}
	var change func(*rule)
	switch verb {
	case "set":
		var err error
		if change, err = settings(arguments); err != nil {
			return "error: " + err.Error()
		}
	case "drop-next":
		if len(arguments) != 1 {
			return "error: drop-next takes a number of frames"
		}
		n, err := strconv.Atoi(arguments[0])
		if err != nil || n < 0 {
			return fmt.Sprintf("error: drop-next takes a number of frames, not %q", arguments[0])
		}
		change = func(r *rule) { r.next = n }
	case "cut":
		change = func(r *rule) { r.cut = true }
	case "join":
		change = func(r *rule) { r.cut = false }
	case "clear":
		change = func(r *rule) { *r = rule{} }
	case "stats":
		answer := "ok"
		for _, d := range directions {
			answer += fmt.Sprintf(" from %s: %v", d.name, &d.counters)
		}
		return answer
	default:
		return fmt.Sprintf("error: unknown command %q; there are set, drop-next, cut, join, clear and stats", verb)
	}
	for _, d := range directions {
		change(&d.rule)
	}
	return "ok " + strings.TrimSpace(line)
}

// settings parses the arguments of set, all of them before any takes effect.
func settings(arguments []string) (func(*rule), error) {
	if len(arguments) == 0 {
		return nil, fmt.Errorf("set takes KEY=VALUE; keys are drop, dup, reorder, delay and match")
	}
	var changes []func(*rule)
	for _, argument := range arguments {
		key, value, ok := strings.Cut(argument, "=")
		if !ok {
			return nil, fmt.Errorf("set takes KEY=VALUE, not %q", argument)
		}
		var change func(*rule)
		switch key {
		case "drop", "dup", "reorder":
			rate, err := strconv.ParseFloat(value, 64)
			if err != nil || !(rate >= 0 && rate <= 1) {
				return nil, fmt.Errorf("%s is a probability from 0 to 1, not %q", key, value)
			}
			change = func(r *rule) {
				switch key {
				case "drop":
					r.drop = rate
				case "dup":
					r.dup = rate
				default:
					r.reorder = rate
				}
			}
		case "delay":
			delay, err := time.ParseDuration(value)
			if err != nil || delay < 0 {
				return nil, fmt.Errorf("delay is a time like 5ms, not %q", value)
			}
			change = func(r *rule) { r.delay = delay }
		case "match":
			i := slices.Index(classNames[:], value)
			if i < 0 {
				return nil, fmt.Errorf("match is one of %s, not %q", strings.Join(classNames[:], ", "), value)
			}
			change = func(r *rule) { r.match = class(i) }
		default:
			return nil, fmt.Errorf("unknown key %q; keys are drop, dup, reorder, delay and match", key)
		}
		changes = append(changes, change)
	}
	return func(r *rule) {
		for _, change := range changes {
			change(r)
		}
	}, nil
}
