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
