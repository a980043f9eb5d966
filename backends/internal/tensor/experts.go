package tensor

// ExpertDevice is the part of Device that mixtures of experts are made of: each row of a batch, a token, goes to some of the experts, its slots, and what these give is combined. Which ones is decided on the device, by the token's
// own logits, and nothing depends on what the others choose: there is no capacity and no token is dropped. Where a tensor holds integers, its float32 elements are the bits of int32s.
type ExpertDevice interface {
	// Route chooses, for each row of logits (T × E), the k experts with the largest ones: choice (T × k, integers) has them in descending order of the logit, ties by lower index, and p (T × k) the softmax of the logits of those
	// that are chosen or, without normalise, of all. The sum is one chain in the order of slots, or 16 lanes and one tree over all. NaN counts as larger than
	// any number, ties by lower index, and gives a p of NaN: a router that is broken is not taken for one that never chooses an expert.
	Route(choice, p, logits Tensor, normalise bool) error
	// RouteBackward overwrites dlogits (T × E) with the gradient by the logits for that by p. The choice has none.
	RouteBackward(dlogits, dp, p, choice, logits Tensor, normalise bool) error
	// Dispatch makes the table of a choice: the slots of all tokens, sorted by expert and, of one expert, by token. An expert that there is not is an error or, where the host does not see the choice, counts as the nearest that there is.
	Dispatch(table Table, choice Tensor) error
	// MatMulRouted does products with the matrices of experts, all at once: a row of the table is multiplied with the matrix of its expert. It has the bits of MatMul. What one writes no other may read or write.
	MatMulRouted(table Table, products ...RoutedProduct) error
	// OuterRouted adds outer products over the rows of each expert, in their order, to the gradients of its matrix, all at once. No two may have a G in common.
	OuterRouted(table Table, products ...RoutedOuter) error
	// Spread gives each row of the table what its token has, rows[i] = x[token] · p[slot]; or, without gathered, rows[i] = x[i] · p[slot], where rows may be x. A p without a buffer is 1.
	Spread(rows, x, p Tensor, table Table, gathered bool) error
	// Combine is what the slots of each token give: y[t] = Σ p[t,s] · rows[i], one chain of fused multiply-adds in the order of slots, from zero or, with accumulate, from what y holds; a p without a buffer is 1.
	Combine(y, rows, p Tensor, table Table, accumulate bool) error
	// CombineBackward turns drows, the gradient by the combined sum at each row's output, for rows that gave h: dp[t,s] = ⟨drows[i], h[i]⟩, summed by 16 lanes and one tree; then drows[i] is multiplied by p[t,s].
	// With segments of a row each is summed so, lanes counted from where it begins, and their sums are added as Segments says.
	CombineBackward(dp, drows, h, p Tensor, table Table, segments Segments) error
}

// The most experts that a token may choose, and that there may be.
const (
	MaxSlots   = 64
	MaxExperts = 4096
)

// Table is how the slots of tokens lie in rows sorted by expert. Words are integers on the device, 1 × TableWords: where each expert's rows begin and the last one's end, then the token of each row, its slot (token · Slots + slot),
// and the row of each slot. Only Dispatch writes them; until it has they mean nothing.
type Table struct {
	Words                  Tensor
	Tokens, Slots, Experts int
	// From and To are for products alone: with a To above 0 they are done for the experts [From, To) only, so that what is long can be cut.
	From, To int
}

// Range is the experts that products go over.
func (t Table) Range() (from, to int) {
	if t.To > 0 {
		return t.From, t.To
	}
	return 0, t.Experts
}

// TableWords is the length of a table's Words.
func TableWords(tokens, slots, experts int) int { return experts + 1 + 3*tokens*slots }

// Rows is the number of rows: each slot of each token is one.
func (t Table) Rows() int { return t.Tokens * t.Slots }

// Loads is where the rows of each expert begin, integers: of expert e those from element e to element e+1.
func (t Table) Loads() Tensor { return t.Words.Columns(0, t.Experts+1) }

// Stack is matrices of one shape, one for each expert, within one Matrix: that of expert e is rows [e·Pitch, e·Pitch+Out) of it. With a Pitch of 0 the matrix is one that all experts share.
type Stack struct {
	Matrix     Matrix
	Out, Pitch int
}

// StackPitch is the pitch of matrices with so many rows: views begin at multiples of MatrixRows.
func StackPitch(out int) int { return (out + MatrixRows - 1) / MatrixRows * MatrixRows }

// StackRows is how many rows the Matrix of a stack has.
func StackRows(experts, out int) int {
	if experts == 1 {
		return out
	}
	return (experts-1)*StackPitch(out) + out
}

// NewStack sees a matrix of StackRows as the matrices of experts; of 1 they all share it.
func NewStack(m Matrix, experts, out int) Stack {
	s := Stack{Matrix: m, Out: out}
	if experts > 1 {
		s.Pitch = StackPitch(out)
	}
	return s
}

// Of is the matrix of an expert.
func (s Stack) Of(expert int) Matrix {
	if s.Pitch == 0 {
		return s.Matrix
	}
	return s.Matrix.Rows(expert*s.Pitch, expert*s.Pitch+s.Out)
}

// RoutedProduct is y[i] (+)= x · w, or with Transposed dx (+)= dy · w, for every row i of the table. Y has as many rows as the table, and so has X or, with Gathered, one for each token, which is then read where its rows are needed.
type RoutedProduct struct {
	Y, X                             Tensor
	Groups                           []RoutedGroup
	Gathered, Accumulate, Transposed bool
	// Segments and Continues are as in Multiplication. A product continues the one right before it, of the same Y; both have one group, of all tokens.
	Segments  Segments
	Continues bool
}

// RoutedGroup is the tokens [From, To) and the matrices that are theirs; Factor and Round are as in RowGroup. No token may be in two groups of a product.
type RoutedGroup struct {
	From, To int
	Stack    Stack
	Factor   float32
	Round    DType
}

// RoutedOuter is g[e][p,q] += Σ a[i,p]·b[i,q] over the rows i of expert e that are of tokens [From, To). G holds the experts' gradients one below the other, each A.Cols × B.Cols. With First the chains start from zero whatever G holds.
type RoutedOuter struct {
	G, A, B  Tensor
	From, To int
	First    bool
}
