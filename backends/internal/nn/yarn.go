package nn

import "math"

// YaRN divides low frequencies by Factor, leaves high ones, and goes linearly from one to the other between those that turn BetaFast and BetaSlow times within OriginalPositions. It also makes cosines and sines larger, by
// AttentionFactor, or what follows from Factor, and from MScale and MScaleAllDim where they are not 0.
type YaRN struct {
	Factor, BetaFast, BetaSlow            float64
	OriginalPositions                     int
	Truncate                              bool    // the bounds are rounded outwards to whole pairs
	AttentionFactor, MScale, MScaleAllDim float64 // 0 = not given
}

// frequencies gives the angle per position for each pair of elements, rounded to float32 where Hugging Face transformers rounds.
func (y *YaRN) frequencies(theta float64, dim int) []float32 {
	low, high := y.bound(y.BetaFast, theta, dim), y.bound(y.BetaSlow, theta, dim)
	if y.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	f := make([]float32, dim/2)
	for i := range f {
		exponent := float32(2*i) / float32(dim)
		period := float32(math.Pow(theta, float64(exponent)))
		keep := 1 - min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
		stretched := float32(1/float32(float32(y.Factor)*period)) * (1 - keep)
		f[i] = stretched + float32(1/period*keep)
	}
	return f
}

// bound is the pair, as a fraction, that turns so many times within the original positions.
func (y *YaRN) bound(turns, theta float64, dim int) float64 {
	return float64(dim) * math.Log(float64(y.OriginalPositions)/(turns*2*math.Pi)) / (2 * math.Log(theta))
}

// scale is what cosines and sines are multiplied with.
func (y *YaRN) scale() float32 {
	of := func(m float64) float64 {
		if y.Factor <= 1 {
			return 1
		}
		return float64(0.1*m*math.Log(y.Factor)) + 1
	}
	switch {
	case y.AttentionFactor != 0:
		return float32(y.AttentionFactor)
	case y.MScale != 0 && y.MScaleAllDim != 0:
		return float32(of(y.MScale) / of(y.MScaleAllDim))
	}
	return float32(of(1))
}
