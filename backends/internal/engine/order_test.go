package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

func TestQueueAdmits(t *testing.T) {
	q := newQueue()
	admit := func(p int64) error { return q.admit(&operation{kind: kindPass, position: p}) }
	for _, c := range []struct {
		name     string
		position int64
		want     error
	}{
		{"zero", 0, plugins.ErrInvalid},
		{"ahead", 3, nil},
		{"twice", 3, plugins.ErrAlreadyApplied},
		{"first", 1, nil},
		{"farthest", plugins.MaxAhead, nil},
		{"too far", plugins.MaxAhead + 1, plugins.ErrCapacity},
	} {
		if err := admit(c.position); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	if ready := q.passes(); len(ready) != 1 || ready[0] != q.first() || ready[0].position != 1 {
		t.Error("an operation is given although one before it is missing")
	}
	q.pop()
	if err := admit(1); !errors.Is(err, plugins.ErrAlreadyApplied) {
		t.Errorf("a decided position: %v", err)
	}
	if err := admit(plugins.MaxAhead + 1); err != nil {
		t.Errorf("one place has become free: %v", err)
	}
	if q.first() != nil {
		t.Error("position 2 has not arrived")
	}
	if err := admit(2); err != nil || len(q.passes()) < 2 {
		t.Errorf("position 2 makes 3 ready: %v", err)
	}
}

func TestWindow(t *testing.T) {
	boom := plugins.Invalidf("data[0].targets", "is wrong")
	for _, c := range []struct {
		name     string
		outcomes []error
		fails    bool
	}{
		{"no pass", nil, false},
		{"success", []error{nil}, false},
		{"failure", []error{boom}, true},
		{"failure and success", []error{boom, nil}, false},
		{"success and failure", []error{nil, boom}, false},
		{"two failures", []error{boom, errors.New("other")}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w window
			for _, err := range c.outcomes {
				w.add(err)
			}
			err := w.verdict()
			if (err != nil) != c.fails {
				t.Fatalf("verdict %v", err)
			}
			if c.fails && (plugins.KindOf(err) != plugins.KindInvalid || (!strings.Contains(err.Error(), "is wrong") || !strings.Contains(err.Error(), "data[0].targets"))) {
				t.Errorf("verdict %v does not give the first reason and its field", err)
			}
		})
	}
}
