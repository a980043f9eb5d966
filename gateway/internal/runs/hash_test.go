package runs

import "testing"

// Every part of a pass is part of its identity, and the order of maps is not.
func TestHashForwardBackward(t *testing.T) {
	make := func(change func(*ForwardBackward)) string {
		op := ForwardBackward{Loss: "ppo", Config: map[string]float64{"a": 1, "b": 2}, Data: []Datum{{
			Tokens: []int32{1, 2}, LossSpans: []Span{{SequenceID: "s", Length: 2}}, InputSpans: []Span{{SequenceID: "s", Length: 2}},
			Inputs: map[string]Tensor{"target_tokens": {Ints: []int64{1, 2}}, "advantages": {Floats: []float32{1, 2}}},
		}}}
		change(&op)
		return hashForwardBackward(op)
	}
	same := make(func(*ForwardBackward) {})
	if again := make(func(*ForwardBackward) {}); again != same {
		t.Fatal("equal requests have different identities")
	}
	seen := map[string]string{same: "nothing"}
	for name, change := range map[string]func(*ForwardBackward){
		"loss":         func(op *ForwardBackward) { op.Loss = "cispo" },
		"config":       func(op *ForwardBackward) { op.Config["a"] = 3 },
		"config text":  func(op *ForwardBackward) { op.ConfigText = map[string]string{"a": "1"} },
		"forward only": func(op *ForwardBackward) { op.ForwardOnly = true },
		"refusal":      func(op *ForwardBackward) { op.Refusal = "x" },
		"first token":  func(op *ForwardBackward) { op.Data[0].Tokens[0] = 9 },
		"last token":   func(op *ForwardBackward) { op.Data[0].Tokens[1] = 9 },
		"first int":    func(op *ForwardBackward) { op.Data[0].Inputs["target_tokens"].Ints[0] = 9 },
		"first float":  func(op *ForwardBackward) { op.Data[0].Inputs["advantages"].Floats[0] = 9 },
		"last float":   func(op *ForwardBackward) { op.Data[0].Inputs["advantages"].Floats[1] = 9 },
		"shape": func(op *ForwardBackward) {
			op.Data[0].Inputs["advantages"] = Tensor{Shape: []int{2, 1}, Floats: []float32{1, 2}}
		},
		"another name": func(op *ForwardBackward) { op.Data[0].Inputs["x"] = Tensor{} },
		"span":         func(op *ForwardBackward) { op.Data[0].LossSpans[0].Sampled = true },
		"input span":   func(op *ForwardBackward) { op.Data[0].InputSpans[0].Offset = 1 },
		"more data":    func(op *ForwardBackward) { op.Data = append(op.Data, Datum{}) },
	} {
		h := make(change)
		if twin, ok := seen[h]; ok {
			t.Errorf("%s makes no difference from %s", name, twin)
		}
		seen[h] = name
	}
}

// Identities are stored: those of another version must be the same.
func TestIdentitiesStayTheSame(t *testing.T) {
	pass := func(tokens int) string {
		x := Datum{
			Tokens: make([]int32, tokens), LossSpans: []Span{{SequenceID: "s", Length: 2}}, InputSpans: []Span{{Sampled: true, SequenceID: "t", Offset: 1, Length: 2}},
			Inputs: map[string]Tensor{"target_tokens": {Ints: make([]int64, tokens)}, "advantages": {Shape: []int{tokens, 1}, Floats: make([]float32, tokens)}},
		}
		for i := range x.Tokens {
			x.Tokens[i], x.Inputs["target_tokens"].Ints[i], x.Inputs["advantages"].Floats[i] = int32(i), int64(i)<<33, float32(i)/3
		}
		return hashForwardBackward(ForwardBackward{Loss: "ppo", Config: map[string]float64{"a": 1, "b": 2}, ConfigText: map[string]string{"c": "d"}, Data: []Datum{x, x}})
	}
	for tokens, want := range map[int]string{
		2:     "e3a55d31403230636032e187e4d8ae169d5e0453d21c865c9e4931184973d929",
		100:   "61419846d8aec591a9f25debc39bf8a9b0759b1bb61ca3d2c74109534497586c",
		10000: "1a3a13790c51f35acb047ccd63ffc8c4f36696f75f4c6a13546c435058305df4",
	} {
		if got := pass(tokens); got != want {
			t.Errorf("a pass of two sequences of %d tokens has the identity %s, it was %s", tokens, got, want)
		}
	}
}
