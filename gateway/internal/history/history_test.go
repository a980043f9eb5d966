package history

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// numbers are such as series have, one column of them of each form and with gaps.
func numbers(r *rand.Rand, kind, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		switch kind {
		case 0:
			out[i] = 0.001
		case 1:
			out[i] = float64(1_000_000 + i*3 - r.IntN(2))
		case 2:
			out[i] = float64(r.Float32())
		case 3:
			out[i] = r.NormFloat64()
		case 4:
			out[i] = []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), math.MaxFloat64, 1 << 53, -(1 << 60)}[r.IntN(7)]
		}
		if kind > 0 && r.IntN(4) == 0 {
			out[i] = missing
		}
	}
	return out
}

func TestBlocksAreReadAsTheyWere(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := r.IntN(maxBlockRows + 1)
		b := &Block{Steps: []int64{}, Times: []int64{}}
		for i := range n {
			b.Steps, b.Times = append(b.Steps, int64(3*i)-10), append(b.Times, r.Int64N(2e12))
		}
		for kind := range r.IntN(6) {
			b.Names, b.Columns = append(b.Names, strings.Repeat("n", kind+1)), append(b.Columns, numbers(r, min(kind, 4), n))
		}
		got, err := DecodeBlock(b.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Steps, b.Steps) || !slices.Equal(got.Times, b.Times) || !slices.Equal(got.Names, b.Names) {
			t.Fatalf("%+v, wanted %+v", got, b)
		}
		for c := range b.Columns {
			if !slices.EqualFunc(got.Columns[c], b.Columns[c], func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }) {
				t.Fatalf("column %d: %v, wanted %v", c, got.Columns[c], b.Columns[c])
			}
		}
		one, err := DecodeBlock(b.Encode(), func(name string) bool { return name == "nn" })
		if err != nil || len(one.Names) > 1 || len(b.Names) > 1 && (len(one.Names) != 1 || one.Names[0] != "nn") {
			t.Fatalf("of one name: %v, %v", one, err)
		}
	}
}

func TestTablesKeepWhatTheyMay(t *testing.T) {
	h, blocks := &Head{}, []*Block(nil)
	add := func(rows ...Row) {
		t.Helper()
		var tail *Block
		if n := len(blocks); n > 0 {
			var err error
			if tail, err = DecodeBlock(blocks[n-1].Encode(), nil); err != nil {
				t.Fatal(err)
			}
		}
		first, changed, _ := h.Append(tail, rows, Replace)
		blocks = append(blocks[:first], changed...)
		if h.Full() {
			blocks = h.Thin(blocks)
		}
		var err error
		if h, err = DecodeHead(h.Encode()); err != nil {
			t.Fatal(err)
		}
	}
	step := int64(0)
	for n := range 200 {
		var rows []Row
		for range n {
			rows = append(rows, Row{Step: step, Time: step * 1000, Values: []Value{{"x", float64(step)}}}, Row{Step: step, Values: []Value{{"y", -float64(step)}}})
			step++
		}
		add(rows...)
	}
	if h.Stride != 2 || h.Came != step || h.Rows != (step+1)/2 || h.Taken != 2*step || h.LastStep() != step-1 {
		t.Fatalf("the head says %+v after %d rows", *h, step)
	}
	collect := NewCollect([]string{"x", "y"}, 0)
	for _, b := range blocks {
		collect.Block(b)
	}
	for k, s := range collect.Series() {
		if int64(len(s.Steps)) != h.Rows {
			t.Fatalf("%s has %d points of %d rows", s.Name, len(s.Steps), h.Rows)
		}
		for i, at := range s.Steps {
			if at != int64(2*i) || s.Values[i] != float64(at)*float64(1-2*k) {
				t.Fatalf("%s: point %d is %v at %d", s.Name, i, s.Values[i], at)
			}
		}
	}
}

func TestNamesBeyondTheMostArePassedOver(t *testing.T) {
	h := &Head{}
	var row Row
	for i := range MaxNames + 7 {
		row.Values = append(row.Values, Value{strings.Repeat("a", i/26) + string(rune('a'+i%26)), 1})
	}
	if _, changed, n := h.Append(nil, []Row{row}, Replace); n != 7 || len(h.Newest) != MaxNames || len(changed[0].Names) != MaxNames {
		t.Errorf("%d were passed over, %d are there", n, len(h.Newest))
	}
}

func TestAFoldGoesOnWhereItWas(t *testing.T) {
	events := []*Event{
		{Kind: Pass, Tokens: 10, Loss: 6, Weight: 3, Begin: 1e9, End: 2e9, Cycle: 1, Queued: 5e8},
		{Kind: Pass, Tokens: 30, Loss: 2, Weight: 1, Begin: 2e9, End: 3e9, Cycle: 2, Policy: &Policy{Count: 2, Ratio: 3, Greatest: 2, Clipped: 1, Bounded: true, K1: 0.5, K3: 1, Advantage: 1, Surprisal: 3}},
		{Kind: Step, Number: 1, LearningRate: 0.1, GradientNorm: 2, Norms: []Value{{AdapterNorm, 5}, {AdapterNorm + "/q_proj", 4}}, Entropies: Entropies{Sampled: Entropy{Count: 4, Sum: 2, Rest: 1}}, Begin: 2e9, End: 3e9, Cycle: 2},
		{Kind: Forward, Tokens: 4, Loss: 8, Weight: 4, End: 4e9},
		{Kind: Pass, Tokens: 1, Loss: 1, Weight: 1},
		{Kind: Dropped},
		{Kind: Step, Number: 7, LearningRate: 0.1, GradientNorm: Unknown, Entropies: Entropies{Prompt: Entropy{Count: 1, Sum: 3}}, End: 5e9},
		{Kind: Pass, Tokens: 1, Loss: 1, Weight: -1},
		{Kind: Loaded},
		{Kind: Step, Number: 2, LearningRate: 0.1, GradientNorm: 1, End: 5e9},
	}
	whole := &Fold{}
	parts := &Fold{}
	var rows []Row
	for i, x := range events {
		again, err := DecodeEvent(x.Encode())
		if err != nil {
			t.Fatal(err)
		}
		step, pass := whole.Add(int64(i+1), x)
		if parts, err = DecodeFold(parts.Encode()); err != nil {
			t.Fatal(err)
		}
		step2, pass2 := parts.Add(int64(i+1), again)
		if !reflect.DeepEqual(step, step2) || !reflect.DeepEqual(pass, pass2) {
			t.Fatalf("event %d: %v and %v, at once %v and %v", i, step2, pass2, step, pass)
		}
		for _, r := range []*Row{step, pass} {
			if r != nil {
				rows = append(rows, *r)
			}
		}
	}
	want := []Row{
		{Step: 1, Time: 3000, Values: []Value{
			{Loss, 2}, {LearningRate, 0.1}, {GradientNorm, 2}, {AdapterNorm, 5}, {AdapterNorm + "/q_proj", 4}, {Tokens, 40}, {TokensPerSecond, 20}, {ClockCycle, 2}, {QueueSeconds, 0.5},
			{RatioMean, 1.5}, {RatioMax, 2}, {ClippedShare, 0.5}, {KLK1, 0.25}, {KLK3, 0.5}, {AdvantageMean, 0.5}, {SampledEntropy, 1.5}, {TopEntropy, 0.5}, {TopRest, 0.25},
		}},
		{Step: 1, Time: 4000, Values: []Value{{ValidationLoss, 2}, {ValidationTokens, 4}, {ValidationWeight, 4}}},
		{Step: 7, Time: 5000, Values: []Value{{LearningRate, 0.1}, {Tokens, 0}, {PromptTopEntropy, 3}, {PromptTopRest, 0}}},
		{Step: 8, Time: 5000, Values: []Value{{LearningRate, 0.1}, {GradientNorm, 1}, {Tokens, 0}}},
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("rows are\n%v, wanted\n%v", rows, want)
	}
	more := Row{Step: 1, Time: 4500, Values: []Value{{ValidationLoss, 5}, {ValidationTokens, 2}, {ValidationWeight, 2}}}
	Validate(&rows[1], more)
	if !reflect.DeepEqual(rows[1], Row{Step: 1, Time: 4500, Values: []Value{{ValidationLoss, 3}, {ValidationTokens, 6}, {ValidationWeight, 6}}}) {
		t.Errorf("two parts make %v", rows[1])
	}
}

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"loss": true, "env/all/reward/total": true, "test/nll (mean)": true, "Verlust-ä": true, "a:b@c%": true, "報酬": true, "<b>": true,
		"": false, "a\nb": false, "\x1b[2J": false, "a\u202eb": false, "a\u2066b": false, "a\u200bb": false, "\xff": false, "a\x00": false, strings.Repeat("a", MaxName+1): false, strings.Repeat("a", MaxName): true,
	} {
		if err := CheckName(name); (err == nil) != good || err != nil && len(err.Error()) > 300 {
			t.Errorf("%.20q: %v", name, err)
		}
	}
}

func TestDrawingKeepsEndsAndPeaks(t *testing.T) {
	s := Series{Name: "x"}
	for i := range int64(5000) {
		v := math.Sin(float64(i) / 300)
		if i == 3333 {
			v = 50
		}
		s.Steps, s.Times, s.Values = append(s.Steps, i), append(s.Times, i), append(s.Values, v)
	}
	for _, points := range []int{3, 4, 100, 999, 4999, 5000, 6000} {
		d := s.Draw(points)
		if n := len(d.Steps); n != min(points, 5000) || d.Steps[0] != 0 || d.Steps[n-1] != 4999 || !slices.IsSorted(d.Steps) || len(d.Values) != n || len(d.Times) != n {
			t.Errorf("%d points are %d, from %d", points, n, d.Steps[0])
		}
		if slices.Max(d.Values) != 50 {
			t.Errorf("of %d points none is the peak", points)
		}
	}
}

// Whatever is stored, reading ends with an error or with what is written again as it is.
func FuzzRecords(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	b := &Block{Steps: []int64{1, 2, 9}, Times: []int64{5, 6, 7}, Names: []string{"a", "b", "c", "d", "e"}}
	for kind := range 5 {
		b.Columns = append(b.Columns, numbers(r, kind, 3))
	}
	h := &Head{}
	h.Append(nil, []Row{b.Row(0), b.Row(2)}, Replace)
	h.State = (&Fold{UpTo: 3}).Encode()
	x := &Event{Kind: Step, Number: 1, Norms: []Value{{AdapterNorm, 1}}}
	p := &Event{Kind: Pass, Policy: &Policy{Count: 1}}
	y := &Event{Kind: Step, Number: 2, Entropies: Entropies{Sampled: Entropy{Count: 1, Sum: 2, Rest: 3}}}
	for _, seed := range [][]byte{b.Encode(), h.Encode(), h.State, x.Encode(), p.Encode(), y.Encode(), withoutEntropies[0], withoutEntropies[1], withoutEntropies[2], nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if b, err := DecodeBlock(in, nil); err == nil {
			again, err := DecodeBlock(b.Encode(), nil)
			if err != nil || again.Len() != b.Len() || len(again.Names) != len(b.Names) {
				t.Fatalf("a block: %v", err)
			}
			for i := range b.Len() {
				if one, two := b.Row(i), again.Row(i); !one.Equal(&two) {
					t.Fatalf("row %d is %v, then %v", i, one, two)
				}
			}
		}
		if h, err := DecodeHead(in); err == nil {
			if again, err := DecodeHead(h.Encode()); err != nil || !bytes.Equal(again.Encode(), h.Encode()) {
				t.Fatalf("a head: %v", err)
			}
		}
		if x, err := DecodeEvent(in); err == nil {
			if again, err := DecodeEvent(x.Encode()); err != nil || !bytes.Equal(again.Encode(), x.Encode()) {
				t.Fatalf("an event: %v", err)
			}
		}
		if x, err := DecodeFold(in); err == nil {
			if again, err := DecodeFold(x.Encode()); err != nil || !bytes.Equal(again.Encode(), x.Encode()) {
				t.Fatalf("a fold: %v", err)
			}
		}
	})
}
