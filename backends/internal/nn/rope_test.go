package nn

import (
	"math"
	"testing"
)

// TestFrequencies has what transformers 5.23 computes (ROPE_INIT_FUNCTIONS, float32) for the settings of released models.
func TestFrequencies(t *testing.T) {
	llama3 := func(factor float64) *Llama3Scaling {
		return &Llama3Scaling{Factor: factor, LowFrequencyFactor: 1, HighFrequencyFactor: 4, OriginalPositions: 8192}
	}
	long := Rope{Theta: 1e4, LongRoPE: &LongRoPE{OriginalPositions: 4096}}
	for i := range 48 {
		long.LongRoPE.Short, long.LongRoPE.Long = append(long.LongRoPE.Short, 1+0.01*float64(i)), append(long.LongRoPE.Long, 1+0.9*float64(i))
	}
	for _, c := range []struct {
		name string
		rope Rope
		dim  int

		positions int
		want      map[int]float32
	}{
		{"Qwen3 with YaRN", Rope{Theta: 1e6, YaRN: &YaRN{Factor: 4, BetaFast: 32, BetaSlow: 1, OriginalPositions: 32768, Truncate: true}}, 128, 0, map[int]float32{0: 1, 1: 0.8058422207832336, 22: 0.00865964312106371, 23: 0.006978305988013744, 30: 0.0010643609566614032, 39: 6.490394298452884e-05, 40: 4.4456985051510856e-05, 63: 3.102344408034696e-07}},
		{"gpt-oss", Rope{Theta: 150000, YaRN: &YaRN{Factor: 32, BetaFast: 32, BetaSlow: 1, OriginalPositions: 4096}}, 64, 0, map[int]float32{0: 1, 8: 0.05081327259540558, 9: 0.031705696135759354, 12: 0.006794959306716919, 17: 0.00012931869423482567, 18: 3.830881178146228e-05, 31: 3.023511396804679e-07}},
		{"Phi-4-mini's size, short", long, 96, 4096, map[int]float32{0: 1, 1: 0.8172318339347839, 7: 0.24393992125988007, 23: 0.009849818423390388, 47: 8.24168382678181e-05}},
		{"Phi-4-mini's size, long", long, 96, 4097, map[int]float32{0: 1, 1: 0.4344232678413391, 7: 0.03575557842850685, 23: 0.0005583076854236424, 47: 2.7979849619441666e-06}},
		{"Qwen3", Rope{Theta: 1e6}, 128, 0, map[int]float32{0: 1, 7: 0.22067339718341827, 35: 0.0005232990952208638, 63: 1.2409377632138785e-06}},
		{"Llama 3.1", Rope{Theta: 5e5, Llama3: llama3(8)}, 128, 0, map[int]float32{0: 1, 21: 0.013490419834852219, 28: 0.0032114461064338684, 35: 9.556212171446532e-05, 63: 3.068925877869333e-07}},
		{"Llama 3.2", Rope{Theta: 5e5, Llama3: llama3(32)}, 64, 0, map[int]float32{0: 1, 14: 0.0032114461064338684, 15: 0.0012905480107292533, 16: 0.000429556705057621, 17: 9.708286233944818e-05, 18: 1.9461638657958247e-05, 31: 9.418306490260875e-08}},
	} {
		got := c.rope.frequencies(c.dim, c.positions)
		if len(got) != c.dim/2 {
			t.Fatalf("%s: %d frequencies", c.name, len(got))
		}
		for i, want := range c.want {
			if d := math.Abs(float64(got[i]) - float64(want)); !(d <= 1e-6*float64(want)) {
				t.Errorf("%s: frequency %d is %v, want %v", c.name, i, got[i], want)
			}
		}
	}
}

// TestYaRNScale has what transformers 5.5 multiplies cosines and sines with.
func TestYaRNScale(t *testing.T) {
	for _, c := range []struct {
		yarn YaRN
		want float32
	}{
		{YaRN{Factor: 4}, 1.138629436111989}, {YaRN{Factor: 32}, 1.3465735902799727}, {YaRN{Factor: 1}, 1}, {YaRN{Factor: 4, AttentionFactor: 0.5}, 0.5},
		{YaRN{Factor: 40, MScale: 1, MScaleAllDim: 1}, 1}, {YaRN{Factor: 40, MScale: 1}, 1.3688879454113936}, {YaRN{Factor: 40, MScale: 0.707, MScaleAllDim: 1.414}, 0.8285998406217638},
	} {
		if got := c.yarn.scale(); math.Abs(float64(got-c.want)) > 1e-6 {
			t.Errorf("%+v: %v, want %v", c.yarn, got, c.want)
		}
	}
}
