package selftest

import (
	"fmt"
	"math"
	"strconv"
)

// Difference is the first place where two values that must be the same are not. Values are written with all their digits.
type Difference struct {
	Where    string `json:"where"`
	Expected string `json:"expected"`
	Got      string `json:"got"`
}

// Error says it in one line.
func (d *Difference) Error() string {
	return fmt.Sprintf("%s is %s; expected %s", d.Where, d.Got, d.Expected)
}

// tally counts what a check has compared and keeps the first difference.
type tally struct {
	compared int
	first    *Difference
}

func (t *tally) differ(where, expected, got string) {
	if t.first == nil {
		t.first = &Difference{where, expected, got}
	}
}

// number writes a value so that it is read back as the same bits.
func number(v float32) string {
	return fmt.Sprintf("%s (0x%08x)", strconv.FormatFloat(float64(v), 'g', -1, 32), math.Float32bits(v))
}

// bits compares values by their bits. from is the number that the first position has.
func (t *tally) bits(where string, expected, got []float32, from int) {
	if len(expected) != len(got) {
		t.differ("the number of values of "+where, strconv.Itoa(len(expected)), strconv.Itoa(len(got)))
		return
	}
	for i := range expected {
		t.compared++
		if math.Float32bits(expected[i]) != math.Float32bits(got[i]) {
			t.differ(fmt.Sprintf("%s, position %d", where, from+i), number(expected[i]), number(got[i]))
		}
	}
}

// tokens compares tokens.
func (t *tally) tokens(where string, expected, got []int) {
	for i := range min(len(expected), len(got)) {
		t.compared++
		if expected[i] != got[i] {
			t.differ(fmt.Sprintf("%s, token %d", where, i), strconv.Itoa(expected[i]), strconv.Itoa(got[i]))
		}
	}
	if len(expected) != len(got) {
		t.differ("the number of tokens of "+where, strconv.Itoa(len(expected)), strconv.Itoa(len(got)))
	}
}

// passes compares log-probabilities and losses of passes that must be the same.
func (t *tally) passes(where string, expected, got []pass) {
	if len(expected) != len(got) {
		t.differ("the number of steps of "+where, strconv.Itoa(len(expected)), strconv.Itoa(len(got)))
		return
	}
	for i := range expected {
		t.pass(fmt.Sprintf("%s, step %d", where, i+1), expected[i], got[i])
	}
}

func (t *tally) pass(where string, expected, got pass) {
	if len(expected.Outputs) != len(got.Outputs) {
		t.differ("the number of outputs of "+where, strconv.Itoa(len(expected.Outputs)), strconv.Itoa(len(got.Outputs)))
		return
	}
	for i := range expected.Outputs {
		t.bits(fmt.Sprintf("%s, log-probabilities of sequence %d", where, i), expected.Outputs[i].Logprobs.Data, got.Outputs[i].Logprobs.Data, 0)
	}
	const loss = "loss:sum"
	want, ok := expected.Metrics[loss]
	have, there := got.Metrics[loss]
	t.compared++
	switch {
	case !ok || !there:
		t.differ(where+", "+loss, "a number", "none")
	case math.Float64bits(want) != math.Float64bits(have):
		t.differ(where+", "+loss, strconv.FormatFloat(want, 'g', -1, 64), strconv.FormatFloat(have, 'g', -1, 64))
	}
}

// samples compares what two samplers have answered to the same request.
func (t *tally) samples(where string, expected, got sampled) {
	for i := range min(len(expected.Sequences), len(got.Sequences)) {
		name := fmt.Sprintf("%s, sample %d", where, i)
		t.tokens(name, expected.Sequences[i].Tokens, got.Sequences[i].Tokens)
		t.bits(name+", log-probabilities", expected.Sequences[i].Logprobs, got.Sequences[i].Logprobs, 0)
	}
	t.bits(where+", log-probabilities of the prompt", expected.PromptLogprobs, got.PromptLogprobs, 0)
}

// largest gives the largest distance of two passes' log-probabilities, and where it is.
func largest(a, b pass) (distance float64, sequence, position int) {
	for i := range min(len(a.Outputs), len(b.Outputs)) {
		x, y := a.Outputs[i].Logprobs.Data, b.Outputs[i].Logprobs.Data
		for j := range min(len(x), len(y)) {
			if d := math.Abs(float64(x[j]) - float64(y[j])); !(d <= distance) { // NaN is a distance too
				distance, sequence, position = d, i, j
			}
		}
	}
	return distance, sequence, position
}
