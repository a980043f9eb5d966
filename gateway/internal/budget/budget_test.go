package budget

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLimits: what is within them is paid for, what is above is refused by name, and no caller can raise them.
func TestLimits(t *testing.T) {
	cases := map[string]struct {
		limits Limits
		spend  func(b *Budget) error
		what   string // "": nothing is exceeded
		limit  int
	}{
		"all steps":                {Limits{Steps: 100}, func(b *Budget) error { return b.Work(100) }, "", 0},
		"a step more":              {Limits{Steps: 100}, func(b *Budget) error { return b.Work(101) }, "steps", 100},
		"a step more, in two":      {Limits{Steps: 100}, func(b *Budget) error { return errors.Join(b.Work(100), b.Work(1)) }, "steps", 100},
		"all bytes":                {Limits{Bytes: 1000}, func(b *Budget) error { return b.Take(1000) }, "", 0},
		"a byte more":              {Limits{Bytes: 1000}, func(b *Budget) error { return b.Take(1001) }, "bytes", 1000},
		"bytes of many":            {Limits{Bytes: 1000}, func(b *Budget) error { return b.TakeEach(500, 3) }, "bytes", 1000},
		"a product that overflows": {Limits{}, func(b *Budget) error { return b.TakeEach(math.MaxInt/2, 16) }, "bytes", Most.Bytes},
		"a sum that overflows":     {Limits{}, func(b *Budget) error { return errors.Join(b.Work(10), b.Work(math.MaxInt)) }, "steps", Most.Steps},
		"a negative number":        {Limits{}, func(b *Budget) error { return b.Work(-5) }, "steps", Most.Steps},
		"limits above the most":    {Limits{Steps: math.MaxInt, Bytes: math.MaxInt}, func(b *Budget) error { return b.Take(Most.Bytes + 1) }, "bytes", Most.Bytes},
		"bytes cost steps":         {Limits{Steps: 100}, func(b *Budget) error { return b.Take(101 * bytesPerStep) }, "steps", 100},
		"whole again":              {Limits{Steps: 100}, func(b *Budget) error { err := b.Work(100); b.Renew(b.Limits()); return errors.Join(err, b.Work(100)) }, "", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := New(t.Context(), c.limits)
			defer b.End()
			err := c.spend(b)
			var exceeded *Exceeded
			switch {
			case c.what == "" && err != nil:
				t.Errorf("got %v", err)
			case c.what != "" && (!errors.As(err, &exceeded) || *exceeded != Exceeded{c.what, c.limit}):
				t.Errorf("got %v, want more than %d %s", err, c.limit, c.what)
			}
		})
	}
}

// occupy takes every place but left, until the test ends.
func occupy(t *testing.T, left int) {
	t.Helper()
	for range len(shared.free) - left {
		b := New(t.Context(), Limits{})
		if err := b.Work(lightSteps + 1); err != nil || !b.placed {
			t.Fatalf("no place: %v", err)
		}
		t.Cleanup(b.End)
	}
}

// TestLightWorkNeedsNoPlace: while all places are taken, ordinary work goes on, and long work is told to come again.
func TestLightWorkNeedsNoPlace(t *testing.T) {
	occupy(t, 0)
	light := New(t.Context(), Limits{})
	defer light.End()
	if err := errors.Join(light.Take(1000), light.Work(lightSteps-1000)); err != nil || light.placed {
		t.Errorf("light work: %v, with a place: %v", err, light.placed)
	}
	if err := light.Work(2 * lookEvery); !errors.Is(err, ErrBusy) {
		t.Errorf("long work while all places are taken: %v", err)
	}
	large := New(t.Context(), Limits{})
	defer large.End()
	if err := large.Take(lightBytes + 1); !errors.Is(err, ErrBusy) {
		t.Errorf("large work while all places are taken: %v", err)
	}
}

// TestWaitingEndsWithTheContext: who has gone does not wait for a place, nor go on with one.
func TestWaitingEndsWithTheContext(t *testing.T) {
	gone := errors.New("client left")
	ctx, leave := context.WithCancelCause(t.Context())
	working := New(ctx, Limits{})
	if err := working.Work(lightSteps + 1); err != nil {
		t.Fatal(err)
	}
	occupy(t, 1)
	waiting := New(ctx, Limits{})
	answer := make(chan error, 1)
	go func() { answer <- waiting.Work(lightSteps + 1) }()
	leave(gone)
	if err := <-answer; !errors.Is(err, gone) {
		t.Errorf("waiting: %v", err)
	}
	if err := working.Work(lookEvery); !errors.Is(err, gone) {
		t.Errorf("working: %v", err)
	}
	waiting.End()
	working.End()
	next := New(t.Context(), Limits{})
	defer next.End()
	if err := next.Work(lightSteps + 1); err != nil {
		t.Errorf("the place was not given back: %v", err)
	}
}

// TestWorkOnText: what is ordinary for the length of a client's text needs no place either, and neither does the next work on it.
func TestWorkOnText(t *testing.T) {
	occupy(t, 0)
	const text = 400_000
	b := New(t.Context(), Limits{})
	defer b.End()
	b.On(text)
	if err := errors.Join(b.Take(ordinaryBytes*text), b.Work(lightSteps)); err != nil || b.placed {
		t.Errorf("ordinary work on a long text: %v, with a place: %v", err, b.placed)
	}
	b.Renew(Limits{})
	if err := b.Work(lightSteps + ordinarySteps*text); err != nil || b.placed {
		t.Errorf("the next work: %v, with a place: %v", err, b.placed)
	}
	if err := b.Work(2 * lookEvery); !errors.Is(err, ErrBusy) {
		t.Errorf("more work than is ordinary: %v", err)
	}
}

// TestPlacesInTurn: a key that waits with much does not keep another one from its place, and who has waited in vain is out of the queue.
func TestPlacesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1)
		if _, err := p.take(t.Context(), "ann"); err != nil {
			t.Fatal(err)
		}
		var got []string
		come := func(ctx context.Context, owner string) {
			go func() {
				if _, err := p.take(ctx, owner); err == nil {
					got = append(got, owner) // one at a time: the others wait
					time.Sleep(time.Millisecond)
					p.give(time.Time{})
				}
			}()
			synctest.Wait()
		}
		left, leave := context.WithCancel(t.Context())
		for range 4 {
			come(t.Context(), "ann")
		}
		come(left, "carl")
		come(t.Context(), "bob")
		come(t.Context(), "bob")
		leave()
		synctest.Wait()
		p.give(time.Time{})
		time.Sleep(patience)
		synctest.Wait()
		if want := []string{"ann", "bob", "ann", "bob", "ann", "ann"}; !slices.Equal(got, want) {
			t.Errorf("places went to %v, want %v", got, want)
		}
		if _, err := p.take(t.Context(), "ann"); err != nil {
			t.Fatal(err)
		}
		if _, err := p.take(t.Context(), "bob"); !errors.Is(err, ErrBusy) {
			t.Errorf("no place in time: %v", err)
		}
		p.give(time.Time{})
		if len(p.free) != 1 || len(p.waiting) != 0 || len(p.turns) != 0 {
			t.Errorf("at the end %d places are free, and %v wait", len(p.free), p.turns)
		}
	})
}
