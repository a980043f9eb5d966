package tensor

// Drawer is implemented by devices that draw tokens where the logits are, with threads or with a memory that Go has not.
type Drawer interface {
	// AdjustElements changes single elements of x, none of them twice.
	AdjustElements(x Tensor, list []Adjustment) error
	// MaskColumns sets elements of x (M × V) to -Inf: in row rows[i], in the columns for which the i-th mask has no bit. A mask is MaskWords(V) words of bits, column c the bit c%64 of word c/64, with the lowest first; the
	// others of the last word say nothing. rows ascend, and no row comes twice.
	MaskColumns(x Tensor, rows []int32, bits []uint64) error
	// DrawTokens draws a token from every row of logits (M × V, V at most MaxColumns), whose softmax is the row of probs: dst (M × 2) receives its column, as a number, and its logit. With a TopK of 1 it is the likeliest
	// token, ties by lower column, and probs are not read. Otherwise tokens are left out as the draw says, and the columns of the others are walked in ascending order, to the first at which the running sum of
	// weights passes U times their total; with a total of 0 it is the likeliest. A weight is a probability in units of 2⁻⁴⁴, cut off to an integer. The order of likelihood is that of the logits, ties by lower column.
	// -Inf is a logit of probability zero; what a row with NaN gives is undefined.
	DrawTokens(dst, logits, probs Tensor, draws []Draw) error
}

// MaskWords is the length of a mask of so many columns.
func MaskWords(columns int) int { return (columns + 63) / 64 }

// MaxColumns is how many columns float32 can tell apart.
const MaxColumns = 1 << 24

// Adjustment is a change to the element in Row and Column: it is divided by Divisor if it is positive and multiplied by it if not, then Less is subtracted, then More added.
type Adjustment struct {
	Row, Column         int32
	Divisor, Less, More float32
}

// Draw says how one row's token is drawn, by a number U in [0, 1). TopK above 0 leaves the TopK likeliest tokens; TopP below 1 the fewest likeliest ones that have this share, rounded up, of the weight
// of what TopK left, and some; MinP those whose probability is at least MinP times that of the likeliest.
type Draw struct {
	U, TopP, MinP float64
	TopK          int64
}
