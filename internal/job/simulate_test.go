package job

import "testing"

// TestSimulate: the launcher takes a job of many hosts through its life.
func TestSimulate(t *testing.T) {
	for _, hosts := range []int{1, 2, 33, 100} {
		s, err := Simulate(hosts, 4, 60)
		if err != nil {
			t.Fatal(err)
		}
		if s.Ranks != 4*hosts || s.Up.Messages != int64(hosts) || s.Down.Messages != int64(hosts) {
			t.Errorf("%+v", s)
		}
	}
}
