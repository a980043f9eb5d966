package tensor

import "errors"

// Matrix is a weight of Out × In elements packed for products on one device (column panels with the inner axis inside). It is read-only for products
// and may be used by several threads; Device.Repack writes it.
type Matrix interface {
	Out() int
	In() int
	DType() DType
	Bytes() int
	// Rows is a view of rows [from, to) of the weight, from a multiple of MatrixRows: products with it give those columns of y, or that part of the chain of dx. It lives as long as the matrix and is not freed.
	// A range that cannot be had gives nil.
	Rows(from, to int) Matrix
	Free()
}

// SourceSizes are the element types that PackRows reads, by their names in weight files, and their bytes.
var SourceSizes = map[string]int{"F32": 4, "BF16": 2, "F16": 2}

// MatrixRows is what a view of a matrix may be cut at.
const MatrixRows = 64

// MatrixBytes is the most memory that a matrix takes on any device: devices fill rows and columns up in different ways.
func MatrixBytes(d DType, out, in int) int {
	const columns = 8
	return (out + MatrixRows - 1) / MatrixRows * MatrixRows * ((in + columns - 1) / columns * columns) * d.Size()
}

// MatrixCopy is a copy of the whole of Src to the rows of Dst that begin at Row, a multiple of MatrixRows. Both have the same type and width. Src ends where Dst does, or has a multiple of MatrixRows rows.
type MatrixCopy struct {
	Dst Matrix
	Row int
	Src Matrix
}

// MatrixSource is a matrix and what all of it is packed from.
type MatrixSource struct {
	Matrix Matrix
	Src    Tensor
}

// Pages holds keys and values of attention in pages of PageSize positions, for a number of layers; page p of every layer belongs together. The
// same pages serve training, prefill and decode, so their arithmetic is one. Unwritten rows of a page are zero.
type Pages interface {
	Layers() int
	Count() int
	Bytes() int
	// Zero clears a page of every layer, before it is given to another sequence. A page that does not exist is an error.
	Zero(page int32) error
	// Copy makes page dst of every layer hold what page src holds, for a sequence that goes on from the middle of another's page.
	Copy(dst, src int32) error
	// Discard gives back the memory of count pages of every layer from page first on, and tells whether it has: not every device can with a part of what it has allocated. What was
	// discarded is undefined and takes memory again when it is next cleared or copied to, which comes before any other use.
	Discard(first, count int32) (bool, error)
	Free()
}

// PageSize is the number of positions in a page of keys and values, and the block of the attention's fixed summation tree.
const PageSize = 64

// AttentionRun is one sequence's part of a batch: query rows [Row, Row+Count) stand at positions First … First+Count-1 of the sequence and attend to
// all positions up to their own. Pages[i] holds positions [64i, 64i+64). Keys and values of the rows themselves have been written before.
type AttentionRun struct {
	Row, Count, First int
	Pages             []int32
	// KeysFrom and KeysTo are for AttentionBackward alone: with KeysTo > 0 it computes the share of keys [KeysFrom, KeysTo), multiples of PageSize but for the sequence's end. So a long sequence can be
	// cut into several calls, in ascending order, with equal bits.
	KeysFrom, KeysTo int
	// RowsFrom and RowsTo are for AttentionBackward alone: with RowsTo > 0 it takes rows [RowsFrom, RowsTo) only, multiples of PageSize but for the sequence's end. Calls for the same keys come in ascending order.
	RowsFrom, RowsTo int
	// Window, if it is not 0, is how many positions a row attends to at most, its own among them: those before have no influence. At most MaxWindow. The softmax of such a run knows no restarts.
	Window int
}

// ErrMemory is wrapped by the error of an operation for which the device has no memory. Nothing else has happened; the operation may be tried again when memory has been freed.
var ErrMemory = errors.New("out of device memory")

// Device is memory and arithmetic of one processor. Methods may be called from one goroutine at a time; each uses the device's own threads and returns when the
// result can be read. Destination first; a destination never overlaps a source unless it is said. Arguments are checked: a shape that does not fit is an
// error, never a panic. Tensors are float32 unless said otherwise.
//
// Fixed order is the contract: every output element is a function of its own row's inputs only, computed by the same chain of operations whatever the number of rows,
// the cut of the batch and the number of threads. A product's element is one chain of fused multiply-adds over the inner axis in ascending order, starting from what the
// output holds (or zero), or, with Segments, a fixed tree over such chains. With bfloat16 matrices the inner axis goes in pairs, odd element first, then even, the last pair padded with zero, inputs rounded to nearest even.
// Processors that multiply by tiles (Arithmetic "cpu-amx-…") take groups of 32 from where a segment begins, the last one padded with zeros: the even elements' chain and
// the odd ones', each from zero, are added to each other and then to the output. Either order is kept by every product of an arithmetic.
// Row reductions use 16 logical lanes and one tree. Denormals are flushed.
type Device interface {
	Recurrence
	E4M3Device

	// Name is "cpu", "cuda:0", …; Arithmetic identifies the bits: equal strings mean equal results.
	Name() string
	Arithmetic() string

	// Alloc gives zeroed memory, contiguous (Stride = cols).
	Alloc(d DType, rows, cols int) (Tensor, error)
	// AllocUnset is Alloc for what is written before it is read: what it holds is undefined.
	AllocUnset(d DType, rows, cols int) (Tensor, error)
	// Free releases the buffer under t (which must be as Alloc gave it).
	Free(t Tensor)
	// Trim gives the system back what the device keeps of freed memory for later, so that other processes can have it. It may wait for all that the device has been given.
	Trim()
	// Upload and Download copy float32 values between Go memory (row-major, contiguous) and a float32 tensor.
	Upload(dst Tensor, src []float32) error
	Download(dst []float32, src Tensor) error
	// DownloadRows is Download to rows of dst that begin pitch elements apart, at least src.Cols; what lies between them stays as it is, and others may use it meanwhile. dst ends with the last row or behind it.
	DownloadRows(dst []float32, pitch int, src Tensor) error

	// NewMatrix allocates a packed matrix of zeros.
	NewMatrix(d DType, out, in int) (Matrix, error)
	// PackRows packs rows [row, row+n) of a matrix from raw little-endian elements of the named source type ("F32", "BF16", "F16"), n × In of them. Rows of one
	// matrix may be packed in pieces, so loading needs no copy of the file in memory.
	PackRows(m Matrix, row, n int, source string, data []byte) error
	// Repack packs whole matrices, all at once, each from a float32 tensor Out × In (adapters' weights after a step). No two may be the same.
	Repack(list ...MatrixSource) error
	// StartCopies begins to copy and returns; finish waits for the end and must be called once, by the goroutine that uses the device. Until then other operations may run, none with a Dst. What is written to a
	// Dst afterwards comes after the copies. Dst is a matrix of this device; Src may be one of another device of the same kind, which may use it meanwhile: it must have been packed, and that have been waited for
	// (Download). After an error what the rows of Dst hold is undefined.
	StartCopies(copies []MatrixCopy) (finish func() error, err error)
	// GatherRows writes rows ids of m (an embedding) as float32: dst is len(ids) × In. An id of -1 is none of these rows: it is among those of another device, and gives zeros.
	GatherRows(dst Tensor, m Matrix, ids []int32) error

	// GatherElements: dst[i] = src at at[i]; dst is 1 × len(at).
	GatherElements(dst, src Tensor, at []Element) error

	// MatMul: y[m,n] (+)= Σk x[m,k]·w[n,k]. y is M × Out. x is M × In, float32 or w's type; float32 rows are rounded once to w's type. With accumulate the
	// chain starts from y, else from zero.
	MatMul(y, x Tensor, w Matrix, accumulate bool) error
	// MatMulTransposed: dx[m,k] (+)= Σn dy[m,n]·w[n,k]; the chain runs over n in ascending order. dy is M × Out, rounded like x above; dx is M × In.
	MatMulTransposed(dx, dy Tensor, w Matrix, accumulate bool) error
	// MatMulGroups and MatMulTransposedGroups do MatMul and MatMulTransposed for ranges of rows that each have a matrix of their own, all at once: what many adapters in one batch cost
	// beyond one is then little. Rows of no group and columns beyond a group's matrix stay as they are (y has at least as many columns as the widest, x as the deepest). A group's result is what MatMul
	// gives for its rows, finished by its Factor and Round. No row may be in two groups.
	MatMulGroups(y, x Tensor, groups []RowGroup, accumulate bool) error
	MatMulTransposedGroups(dx, dy Tensor, groups []RowGroup, accumulate bool) error
	// Segmented tells whether the device knows segments: products with them (Multiplication), LogSumExps, and parts in AttentionBackward. One that does not need not look at them.
	Segmented() bool
	// MatMuls does MatMulGroups or MatMulTransposedGroups for each product of a stage, all at once, and one stage after another: a step over few rows then takes the time of reading the matrices, and none of waiting between
	// products; over many, what is done to rows before they are multiplied is done once for neighbours that read the same. What one writes no other of its stage may read or write; later stages may.
	MatMuls(stages ...[]Multiplication) error
	// OuterProducts does OuterProduct for each of products, all at once. No two may have a g in common.
	OuterProducts(products []OuterProduct) error
	// OuterProduct: g[p,q] += Σm a[m,p]·b[m,q], the chain over rows m ascending, starting from g; float32 arithmetic whatever the model's type. a is M × P, b is M × Q.
	OuterProduct(g, a, b Tensor) error
	// Round writes src rounded to dst's type (bfloat16: to nearest even). Float32 to float32 copies.
	Round(dst, src Tensor) error

	// Add: dst += src. Scale: dst = factor · dst, then rounded to the values of type as (Float32: not rounded). AddRow: every row of dst += row (1 × Cols).
	Add(dst, src Tensor) error
	Scale(dst Tensor, factor float32, as DType) error
	AddRow(dst, row Tensor) error
	// Zero clears.
	Zero(dst Tensor) error

	// RMSNorm: y = x · 1/√(mean(x²)+eps) · weight (1 × Cols), per row; y may be x. A Fuser's y may be bfloat16, here and in SwiGLU.
	RMSNorm(y, x, weight Tensor, eps float32) error
	// RMSNormBackward: dx (+)= the gradient for dy at input x. dx may be dy when not accumulating.
	RMSNormBackward(dx, dy, x, weight Tensor, eps float32, accumulate bool) error
	// Rope rotates, in place, the first 2·table.Cols/2 elements of every head (halves convention of Hugging Face: element i with i + dim/2): x is M × heads·headDim, row m stands at
	// positions[m]; table is maxPositions × dim: dim/2 cosines, then dim/2 sines. inverse rotates back (the gradient).
	Rope(x Tensor, positions []int32, table Tensor, heads int, inverse bool) error
	// SwiGLU: y = silu(gate) · up. Its backward overwrites dgate and dup (dgate may be gate, dup may be up or dy). A Fuser's gate and up may both be bfloat16, here and in the backward, whose dgate and dup are neither then.
	SwiGLU(y, gate, up Tensor) error
	SwiGLUBackward(dgate, dup, dy, gate, up Tensor) error

	// NewPages allocates zeroed pages for layers × count pages of heads × PageSize × headDim keys and as many values, stored in type d.
	NewPages(d DType, layers, count, heads, headDim int) (Pages, error)
	// WritePages rounds rows of k and v (M × heads·headDim) to the pages' type and stores them at the positions of runs.
	WritePages(p Pages, layer int, k, v Tensor, runs []AttentionRun) error
	// Attention: o[row] = softmax(scale · q·K)·V per head; query head h uses key head h / (queryHeads/heads). q and o are M × queryHeads·headDim; lse (M × queryHeads) receives the
	// log-sum-exp of each row and head for the backward pass, and may have no buffer when that is not needed. Keys come in pages ascending; a running softmax restarts every 2,048 keys and the
	// parts are merged in order. A key's contribution to a row before it is left out; what it holds has no influence. With bfloat16 pages a device may round q and the probabilities to bfloat16 for the products,
	// and do and the gradients by scores in the backward pass; sums are float32. Rows of no run stay as they are; no row may be in two runs. Runs may name the same pages (a shared prefix).
	// A Fuser's q may be of its QueryType, here and in AttentionBackward.
	Attention(o, lse, q Tensor, p Pages, layer int, runs []AttentionRun, queryHeads int, scale float32) error
	// AttentionBackward overwrites dq, dk, dv (rows as q and k) for do. Every run must start at position 0 (training). Of a run with a range of keys it overwrites dk and dv of these keys, and adds to dq unless
	// the range begins at 0. Of one with a range of rows it overwrites or adds to dq of these rows, and adds to dk and dv of keys before them; keys behind them stay as they are. A Fuser's o may be bfloat16.
	// dk and dv may be wider, by a number of parts that divides a key head's query heads: they then have so many parts of each key head's gradient side by side, each of equally many query heads, in their order.
	AttentionBackward(dq, dk, dv, do, o, lse, q Tensor, p Pages, layer int, runs []AttentionRun, queryHeads int, scale float32) error

	// LogSumExp: lse[m] (M × 1) of each row of logits, in fixed tiles. -Inf is a logit of probability zero; a row with +Inf or NaN gives NaN.
	LogSumExp(lse, logits Tensor) error
	// LogSumExps is LogSumExp of each of a row's segments: lse is M × the number of segments. Tiles are counted from where a segment begins.
	LogSumExps(lse, logits Tensor, s Segments) error
	// Softmax: p = exp(logits - lse); p may be logits.
	Softmax(p, logits, lse Tensor) error
	// SoftmaxGradient overwrites logits (M × V) with Σk c[m,k]·(1[v = targets[m,k]] - softmax(logits)[m,v]): the gradient by logits of a loss whose
	// gradient by the log-probability of targets[m,k] is c[m,k]. targets and c are M × K, row-major.
	// A target of -1 is none of these columns: it is among those of another device, and counts by its c only.
	SoftmaxGradient(logits, lse Tensor, targets []int32, c []float32) error

	// SumSquares gives Σ x² of each of xs in float64, all at once; it is finite if and only if every element is. The order is the same on all devices: a row is cut into pieces of 4,096 elements, of which
	// 16 lanes take every 16th each, in order, and are then added lane i to lane i + 8, 4, 2, 1; the sums of pieces, in their order, are taken by 256 lanes likewise. They are of what xs hold now; wait gives them, waits for
	// them to be computed where the device works beside the host, and must be called once.
	SumSquares(xs ...Tensor) (wait func() ([]float64, error), err error)
	// AdamW does each of updates, all at once: it writes the next weights and moments (NewP, NewM, NewV, which may be P, M, V) from P, M, V and the gradient g, which is G times min(1, MaxNorm / (‖G‖ + 1e-6)), computed in
	// float64, or G where MaxNorm is 0. Step counts from 1. What one writes no other may read or write.
	// m' = b1·m + (1-b1)·g; v' = b2·v + (1-b2)·g²; p' = p - lr·wd·p - lr·(m'/(1-b1^t)) / (√(v'/(1-b2^t)) + eps), as torch.optim.AdamW.
	// wait, which is that of SumSquares, gives the sums of squares of each update, and has written their Pieces.
	AdamW(updates ...AdamWUpdate) (wait func() ([]AdamWSums, error), err error)

	ExpertDevice
	SinkDevice

	// Close ends the device's threads. All memory must have been freed: it is an error, which names how many allocations have not, and the threads end all the same. Another Close does nothing.
	Close() error
}

// OwnMemory is implemented by devices whose memory is not the processor's.
type OwnMemory interface {
	// FreeMemory is how many bytes can still be allocated.
	FreeMemory() (int64, error)
	// TotalMemory is how many bytes the device has, whoever uses them.
	TotalMemory() (int64, error)
}

// OwnMemoryBytes is what an allocation of so many bytes takes of a device with memory of its own at most: such devices give it in pages.
func OwnMemoryBytes(bytes int64) int64 {
	unit := int64(512)
	if bytes > 1<<20 {
		unit = 2 << 20
	}
	return (bytes + unit - 1) / unit * unit
}

// Element is a place in a tensor. Column -1 is none of its columns: it is among those of another device, and counts as 0 here.
type Element struct{ Row, Column int32 }

// RowGroup is the rows [From, To) of a batch and the matrix that is theirs. With Factor not 0 a finished element is multiplied by it and then rounded to the values of type Round, as
// Scale does.
type RowGroup struct {
	From, To int
	Matrix   Matrix
	Factor   float32
	Round    DType
}

// Multiplication is the arguments of Device.MatMulGroups, or of MatMulTransposedGroups: Y is then dx, and X dy.
//
// With Segments the chain over the inner axis, which is as long for all groups, is cut. Accumulate is not for more than one segment.
type Multiplication struct {
	Y, X                   Tensor
	Groups                 []RowGroup
	Accumulate, Transposed bool
	Segments               Segments
	// Continues says that the product goes on with the chains of the one before it, in its stage, that began to write Y: segment i is a chain over segment i of that one's inner axis, and then of this one's. Both are
	// transposed, have one group of all rows with no Factor, matrices of one type and as many segments.
	Continues bool
}

// OuterProduct is the arguments of Device.OuterProduct. With First, the chain starts from zero whatever G holds. The last Apart rows are not of it: they are a chain of their own, which starts from zero and whose sum is
// added to G behind it, as if it had been summed elsewhere and added by Device.Add. With First there are rows before them.
//
// Positions, unless nil, are those of the rows in their sequences: the rows of one are beside each other, ascending, and another one begins at position 0. A device may then sum rows in groups that begin at multiples of PositionGroup, so that bits
// are those of any cut into launches there; who cuts elsewhere gives nil, always for one G.
type OuterProduct struct {
	G, A, B   Tensor
	First     bool
	Apart     int
	Positions []int32
}

// PositionGroup is the number of positions that OuterProduct.Positions tells of.
const PositionGroup = 16

// AdamWUpdate is one set of parameters in Device.AdamW: tensors of one shape, and the settings of its step.
type AdamWUpdate struct {
	NewP, NewM, NewV, P, M, V, G Tensor
	AdamWStep
	// Pieces, unless nil, is where the sums of squares of NewP's pieces go, as SumSquares cuts it, row by row: P.Rows times SumPieces(P.Cols) numbers. It is the device's until wait has returned.
	Pieces []float64
}

// SumPiece is how many elements of a row SumSquares sums together before anything else.
const SumPiece = 4096

// SumPieces is how many pieces a row of so many columns has.
func SumPieces(cols int) int { return (cols + SumPiece - 1) / SumPiece }

// AdamWStep has the scalars of one step in float64; they are combined before they are rounded to float32.
type AdamWStep struct {
	LearningRate, Beta1, Beta2, Eps, WeightDecay, MaxNorm float64
	Step                                                  int64
}

// AdamWSums are the sums of squares, as SumSquares gives them, of an update's gradient G and of what it has written.
type AdamWSums struct{ G, NewP, NewM, NewV float64 }
