package runs

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func floats(values ...float32) Tensor { return Tensor{Floats: values} }

// policy is a datum with everything that any loss reads.
func policy() Datum {
	return Datum{Tokens: []int32{2, 3, 4, 5}, Inputs: map[string]Tensor{
		"target_tokens": {Ints: []int64{3, 4, 5, 6}}, "logprobs": floats(-1, -2, -1.5, -3), "advantages": floats(1, -1, 0.5, 2), "sequence_ratio_mask": floats(0, 1, 1, 1),
	}}
}

// What is sent to the backend is the same whatever else a datum carries.
func TestInputsThatALossDoesNotRead(t *testing.T) {
	for loss := range losses {
		plain := policy()
		for name := range plain.Inputs {
			if !losses[loss].reads(name) {
				delete(plain.Inputs, name)
			}
		}
		want, err := checkData(ForwardBackward{Loss: loss, Data: []Datum{plain}}, 64, 16)
		if err != nil {
			t.Fatal(err)
		}
		loaded := policy()
		for name := range loaded.Inputs {
			if !losses[loss].reads(name) {
				loaded.Inputs[name] = Tensor{Floats: []float32{float32(math.NaN())}, Shape: []int{7}} // not even looked at
			}
		}
		loaded.Inputs["mask"], loaded.Inputs[""] = floats(1), Tensor{Ints: []int64{1}}
		got, err := checkData(ForwardBackward{Loss: loss, Data: []Datum{loaded}}, 64, 16)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", loss, got, err, want)
		}
	}
}

func TestWeightsOfALoss(t *testing.T) {
	for _, c := range []struct {
		name, loss string
		weights    *Tensor
		want       []float32 // nil = none are sent
		err        string
	}{
		{"cross_entropy without", "cross_entropy", nil, []float32{1, 1, 1, 1}, ""},
		{"cross_entropy with", "cross_entropy", &Tensor{Floats: []float32{0, 1, 0.5, -2}}, []float32{0, 1, 0.5, -2}, ""},
		{"ppo without", "ppo", nil, nil, ""},
		{"ppo with ones", "ppo", &Tensor{Ints: []int64{1, 1, 1, 1}}, nil, ""},
		{"ppo with some", "ppo", &Tensor{Floats: []float32{0, 1, 0.5, 2}}, []float32{0, 1, 0.5, 2}, ""},
		{"ppo with negative ones", "ppo", &Tensor{Floats: []float32{1, 1, -0.5, 1}}, nil, "data[0].weights: element 2 is -0.5, must be at least 0 with ppo"},
		{"gspo with negative ones", "gspo", &Tensor{Floats: []float32{-1, 1, 1, 1}}, nil, "data[0].weights: element 0 is -1"},
		{"importance_sampling with negative ones", "importance_sampling", &Tensor{Floats: []float32{1, 1, -0.5, 1}}, []float32{1, 1, -0.5, 1}, ""},
		{"stable_reinforce with some", "stable_reinforce", &Tensor{Floats: []float32{0, 1, 1, 1}}, []float32{0, 1, 1, 1}, ""},
		{"of the wrong shape", "cispo", &Tensor{Floats: []float32{1, 1, 1}}, nil, "data[0].weights: has shape [3]"},
		{"not finite", "dro", &Tensor{Floats: []float32{1, 1, 1, float32(math.NaN())}}, nil, "data[0].weights: element 3 is not finite"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := policy()
			if c.weights != nil {
				d.Inputs["weights"] = *c.weights
			}
			got, err := checkData(ForwardBackward{Loss: c.loss, Data: []Datum{d}}, 64, 16)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || !slices.Equal(got.Data[0].Weights, c.want) {
				t.Errorf("weights %v, %v; want %v", got.Data[0].Weights, err, c.want)
			}
		})
	}
	wide := Datum{Tokens: []int32{2, 3}, Inputs: map[string]Tensor{"target_tokens": {Ints: []int64{3, 4, 5, 6, 7, 8}, Shape: []int{2, 3}}}}
	got, err := checkData(ForwardBackward{Loss: "cross_entropy", Data: []Datum{wide}}, 64, 16)
	if err != nil || !slices.Equal(got.Data[0].Weights, []float32{1, 1, 1, 1, 1, 1}) {
		t.Errorf("weights of targets in two dimensions: %v, %v", got.Data, err)
	}
}

// Weights that are left out take room all the same: so the targets are bounded.
func TestTooManyTargets(t *testing.T) {
	many := make([]int64, maxTargets/2+1)
	d := Datum{Tokens: make([]int32, 1), Inputs: map[string]Tensor{"target_tokens": {Ints: many, Shape: []int{1, len(many)}}}}
	if _, err := checkData(ForwardBackward{Loss: "cross_entropy", Data: []Datum{d}}, 0, 0); err != nil {
		t.Fatal(err)
	}
	_, err := checkData(ForwardBackward{Loss: "cross_entropy", Data: []Datum{d, d}}, 0, 0)
	if err == nil || !strings.Contains(err.Error(), "more than 8388608 target_tokens") {
		t.Errorf("got %v", err)
	}
}

// Each name is told once for each run, also after a restart, and no more than a few of them.
func TestUnreadInputsAreTold(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(w *world) { w.config.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	unread := func() []string {
		t.Helper()
		all, err := w.RunStatuses(ctx, owner)
		w.ok(err)
		return all[0].UnreadInputs
	}
	op := w.pass(run, 1)
	op.Data[0].Inputs["advantages"], op.Data[0].Inputs["a\nb"] = floats(1), floats()
	w.good(w.ForwardBackward(ctx, op))
	op.Seq = 2
	w.good(w.ForwardBackward(ctx, op))
	w.eventually(func() bool { return strings.Count(log.String(), "not read by the loss") == 2 })
	if got, want := unread(), []string{"a\nb", "advantages"}; !slices.Equal(got, want) {
		t.Errorf("unread inputs are %q, want %q", got, want)
	}
	w.restart()
	op.Seq = 3
	w.good(w.ForwardBackward(ctx, op))
	if n := strings.Count(log.String(), "not read by the loss"); n != 2 || len(unread()) != 2 {
		t.Errorf("after a restart it was told %d times of %q", n, unread())
	}
	op = w.pass(run, 4)
	for i := range 3 * maxUnread {
		op.Data[0].Inputs["x"+strings.Repeat("é", maxUnreadName)+fmt.Sprint(i)] = floats()
		op.Data[0].Inputs[fmt.Sprint("y", i)] = floats()
	}
	w.good(w.ForwardBackward(ctx, op))
	for _, name := range unread() {
		if len(name) > maxUnreadName || !utf8.ValidString(name) { // what is not valid comes back from the store as another name
			t.Errorf("a name of %d bytes is kept: %q", len(name), name)
		}
	}
	if n := len(unread()); n != maxUnread {
		t.Errorf("%d names are kept, want %d", n, maxUnread)
	}
}

// The terms of a loss go to the client, also from the store.
func TestTermsAreKept(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	op := w.pass(run, 1)
	op.Data[0].Inputs["weights"] = floats(1, 0, 0.5, 2)
	s, err := w.ForwardBackward(ctx, op)
	got := w.good(s, err).ForwardBackward
	for range 2 {
		sum := 0.0
		for i, term := range got.Terms[0] {
			if want := -[]float32{1, 0, 0.5, 2}[i] * got.Logprobs[0][i]; math.Abs(float64(term-want)) > 1e-6 {
				t.Errorf("term %d is %v, want %v", i, term, want)
			}
			sum += float64(term)
		}
		if math.Abs(sum-got.Metrics["loss:sum"]) > 1e-6 {
			t.Errorf("the terms add up to %v, loss:sum is %v", sum, got.Metrics["loss:sum"])
		}
		w.restart()
		got = w.outcome(s.RequestID).ForwardBackward
	}
}
