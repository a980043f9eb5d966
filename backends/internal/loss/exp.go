package loss

import "math"

// exp is e^x with the same bits on every processor: math.Exp has assembly on some and may be compiled with fused operations on others. Range reduction to |r| ≤ ln2/2
// and the rational approximation of FreeBSD's e_exp.c (Sun Microsystems 1993), every operation rounded by itself.
func exp(x float64) float64 {
	const (
		ln2High = 6.93147180369123816490e-01
		ln2Low  = 1.90821492927058770002e-10
		log2e   = 1.44269504088896338700e+00
		p1      = 1.66666666666666657415e-01
		p2      = -2.77777777770155933842e-03
		p3      = 6.61375632143793436117e-05
		p4      = -1.65339022054652515390e-06
		p5      = 4.13813679705723846039e-08
	)
	switch {
	case math.IsNaN(x):
		return x
	case x > 709.78:
		return math.Inf(1)
	case x < -745:
		return 0
	}
	n := math.Floor(float64(x*log2e) + 0.5)
	high := x - float64(n*ln2High)
	low := float64(n * ln2Low)
	r := high - low
	t := float64(r * r)
	c := p4 + float64(t*p5)
	c = p3 + float64(t*c)
	c = p2 + float64(t*c)
	c = p1 + float64(t*c)
	c = r - float64(t*c)
	y := 1 - ((low - float64(float64(r*c)/(2-c))) - high)
	return math.Ldexp(y, int(n))
}
