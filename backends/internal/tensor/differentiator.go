package tensor

// Differentiator is implemented by devices that differentiate losses where the log-probabilities are, because the host would have to wait for these: a training pass is then launched as a whole.
type Differentiator interface {
	// Differentiate makes the logits of targets in values (1 × n, one per term) log-probabilities: it subtracts the log-sum-exp lse (M × 1) of each term's row. slopes (1 × n) receives the loss's derivative by
	// each, as the term says, computed in float64 with the exponential of package loss and rounded once: 0 where the log-probability or the derivative is not finite. slopes may have no buffer when it is not needed, and ratios,
	// which DatumRatios has written, when no term has one of them.
	Differentiate(slopes, values, lse, ratios Tensor, terms []LossTerm) error
	// DatumRatios writes exp of the mean of lp - Recorded over the positions of each datum, in float64: summed in their order, with the exponential of package loss; 1 without any. Those of datum i are positions[ends[i-1]:ends[i]], and
	// logprobs is 1 × n. ratios is 1 × 2·len(ends), one number in every two elements, and begins at a multiple of 8 bytes as what is allocated does. Only Differentiate reads it.
	DatumRatios(ratios, logprobs Tensor, positions []RatioPosition, ends []int32) error
	// SoftmaxGradientBy is Device.SoftmaxGradient with the coefficients on the device: c is 1 × len(targets).
	SoftmaxGradientBy(logits, lse Tensor, targets []int32, c Tensor) error
	// StartDownload is Device.Download of what a contiguous src holds now, without a wait: dst has it when finish has returned, which must be called once. finish waits for the device unless the host has waited for it since, so
	// that several that are started before the first of them is finished are one wait, and so with the sums of Device.SumSquares and AdamW.
	StartDownload(dst []float32, src Tensor) (finish func() error, err error)
}

// LossForm is how the derivative of a term of a loss by a log-probability lp comes about. With d = lp - Recorded, r = exp(d), s the ratio of datum Datum, and clip(r) = min(max(r, Low), High):
type LossForm int32

// The forms. The derivative of all but LossQuadratic is 0 where Weight is, whatever the log-probability.
const (
	LossLinear    LossForm = iota + 1 // -Weight
	LossRatio                         // -clip(r)·Weight
	LossClipped                       // -r·Weight where r·Weight ≤ clip(r)·Weight, else 0
	LossQuadratic                     // -(Weight - Beta·d); 0 where both are 0
	LossDatum                         // -s·Weight where s·Weight ≤ clip(s)·Weight, else 0
)

// LossTerm is one target's term of a loss.
type LossTerm struct {
	Low, High, Beta  float64
	Weight, Recorded float32
	Row              int32 // of the logits
	Form             LossForm
	Datum, _         int32
}

// RatioPosition is a position that counts in its datum's ratio.
type RatioPosition struct {
	Column   int32 // of its log-probability
	Recorded float32
}
