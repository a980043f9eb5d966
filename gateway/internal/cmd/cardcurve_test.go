package cmd

import (
	"strings"
	"testing"
)

func TestLossesOfACard(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	var long curve
	long.Name, long.Source = "loss", "server"
	for step := range int64(100) {
		long.Steps, long.Values = append(long.Steps, step+1), append(long.Values, f(1/float64(step+1)))
	}
	for _, c := range []struct {
		name   string
		series []curve
		last   int64
		want   string
	}{
		{"none", nil, 10, ""},
		{"a client's of that name", []curve{{"loss", "client", []int64{1}, []*float64{f(2)}}}, 10, ""},
		{"one", []curve{{"loss", "server", []int64{1}, []*float64{f(2)}}}, 10, "| step | loss per token |\n|---|---|\n| 1 | 2 |\n"},
		{"up to a checkpoint, without what is no number", []curve{{"loss", "server", []int64{1, 2, 3, 4}, []*float64{f(4), nil, f(2), f(1)}}}, 3, "| step | loss per token |\n|---|---|\n| 1 | 4 |\n| 3 | 2 |\n"},
		{
			"with validation", []curve{{"loss", "server", []int64{1, 2, 3}, []*float64{f(4), f(3), f(2)}}, {"validation/loss", "server", []int64{2}, []*float64{f(5)}}}, 3,
			"| step | loss per token | validation loss per token |\n|---|---|---|\n| 1 | 4 | |\n| 2 | 3 | 5 |\n| 3 | 2 | 5 |\n",
		},
		{
			"a long one", []curve{long}, 100,
			"| step | loss per token |\n|---|---|\n| 1 | 1 |\n| 17 | 0.058824 |\n| 34 | 0.029412 |\n| 50 | 0.02 |\n| 67 | 0.014925 |\n| 83 | 0.012048 |\n| 100 | 0.01 |\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			writeLosses(&b, lossTable(c.series, c.last))
			if got := strings.TrimPrefix(b.String(), "\nHow the loss went:\n\n"); got != c.want {
				t.Errorf("the table is\n%swant\n%s", got, c.want)
			}
		})
	}
}
