package history

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// Block is some rows that follow each other, as columns.
type Block struct {
	Steps, Times []int64 // ascending steps; a step is there once
	Names        []string
	Columns      [][]float64 // by name; see missing

	at map[string]int // places of names, once somebody has asked
}

// Len is the number of rows.
func (b *Block) Len() int { return len(b.Steps) }

// column finds the place of a name; -1 if there is none.
func (b *Block) column(name string) int {
	if b.at == nil {
		b.at = make(map[string]int, len(b.Names))
	}
	for i := len(b.at); i < len(b.Names); i++ {
		b.at[b.Names[i]] = i
	}
	if i, ok := b.at[name]; ok {
		return i
	}
	return -1
}

// push adds a row behind the others.
func (b *Block) push(r Row) {
	b.Steps, b.Times = append(b.Steps, r.Step), append(b.Times, r.Time)
	for i := range b.Columns {
		b.Columns[i] = append(b.Columns[i], missing)
	}
	for _, v := range r.Values {
		b.put(len(b.Steps)-1, v)
	}
}

// put sets a value of a row.
func (b *Block) put(row int, v Value) {
	at := b.column(v.Name)
	if at < 0 {
		at = len(b.Names)
		column := make([]float64, len(b.Steps), max(len(b.Steps), BlockRows))
		for i := range column {
			column[i] = missing
		}
		b.Names, b.Columns = append(b.Names, v.Name), append(b.Columns, column)
	}
	b.Columns[at][row] = given(v.Number)
}

// Row gives a row back.
func (b *Block) Row(i int) Row {
	r := Row{Step: b.Steps[i], Time: b.Times[i]}
	for c, name := range b.Names {
		if v := b.Columns[c][i]; !isMissing(v) {
			r.Values = append(r.Values, Value{name, v})
		}
	}
	return r
}

// Pop takes the last row off.
func (b *Block) Pop() Row {
	n := b.Len() - 1
	r := b.Row(n)
	b.Steps, b.Times = b.Steps[:n], b.Times[:n]
	for i := range b.Columns {
		b.Columns[i] = b.Columns[i][:n]
	}
	return r
}

// The forms of a block and a head, their first byte.
const (
	formBlock = 1
	formHead  = 2
)

// The forms of a column's numbers. Each is exact.
const (
	constant = 0 // one number, where all are the same
	integers = 1 // differences of whole numbers
	singles  = 2 // float32
	doubles  = 3 // float64
)

// whole tells whether a number is one that the form for whole numbers keeps.
func whole(v float64) bool {
	return math.Abs(v) < 1<<53 && v == math.Trunc(v) && !(v == 0 && math.Signbit(v))
}

// formOf chooses the smallest form of numbers of which there is at least one.
func formOf(numbers []float64) byte {
	same, ints, short := true, true, true
	for _, v := range numbers {
		same = same && math.Float64bits(v) == math.Float64bits(numbers[0])
		ints = ints && whole(v)
		short = short && math.Float64bits(float64(float32(v))) == math.Float64bits(v)
	}
	switch {
	case same:
		return constant
	case ints:
		return integers
	case short:
		return singles
	}
	return doubles
}

// Encode writes the block.
func (b *Block) Encode() []byte {
	e := pack.Encoder{B: append(make([]byte, 0, 64+6*len(b.Steps)*(len(b.Names)+1)), formBlock)}
	e.Uint(uint64(len(b.Steps)))
	differences(&e, b.Steps)
	differences(&e, b.Times)
	e.Uint(uint64(len(b.Names)))
	var column pack.Encoder
	for i, name := range b.Names {
		column.B = encodeColumn(column.B[:0], b.Columns[i])
		e.Text(name)
		e.Bytes(column.B)
	}
	return e.B
}

func differences(e *pack.Encoder, numbers []int64) {
	last := int64(0)
	for _, n := range numbers {
		e.Int(n - last)
		last = n
	}
}

func encodeColumn(to []byte, column []float64) []byte {
	e := pack.Encoder{B: to}
	numbers := make([]float64, 0, len(column))
	present := make([]byte, (len(column)+7)/8)
	for i, v := range column {
		if !isMissing(v) {
			numbers = append(numbers, v)
			present[i/8] |= 1 << (i % 8)
		}
	}
	switch len(numbers) {
	case len(column):
		e.Bytes(nil) // all are there
	default:
		e.Bytes(present)
	}
	if len(numbers) == 0 {
		return e.B
	}
	form := formOf(numbers)
	e.B = append(e.B, form)
	switch form {
	case constant:
		e.Float(numbers[0])
	case integers:
		last := int64(0)
		for _, v := range numbers {
			e.Int(int64(v) - last)
			last = int64(v)
		}
	case singles:
		short := make([]float32, len(numbers))
		for i, v := range numbers {
			short[i] = float32(v)
		}
		e.B = pack.AppendFloat32s(e.B, short)
	default:
		for _, v := range numbers {
			e.Float(v)
		}
	}
	return e.B
}

// DecodeBlock reads a block, of the columns those that are wanted; nil = all. The bytes may be any: what is no block is an error, and nothing takes more memory than a block may.
func DecodeBlock(from []byte, wanted func(name string) bool) (*Block, error) {
	d := pack.NewDecoder(from)
	if d.Byte() != formBlock {
		return nil, fmt.Errorf("read a block of series: its form is not known")
	}
	n := d.Count()
	if n > maxBlockRows {
		return nil, fmt.Errorf("read a block of series: it has %d rows, at most %d are possible", n, maxBlockRows)
	}
	b := &Block{Steps: sums(d, n), Times: sums(d, n)}
	names := d.Count()
	if names > MaxNames {
		return nil, fmt.Errorf("read a block of series: it has %d names, at most %d are possible", names, MaxNames)
	}
	for range names {
		name, column := d.Text(), d.Bytes()
		if d.Err() != nil {
			break
		}
		if wanted != nil && !wanted(name) {
			continue
		}
		numbers, err := decodeColumn(column, n)
		if err != nil {
			return nil, fmt.Errorf("read a block of series: column %s: %w", Quote(name), err)
		}
		if b.column(name) >= 0 {
			return nil, fmt.Errorf("read a block of series: it has column %s twice", Quote(name))
		}
		b.Names, b.Columns = append(b.Names, name), append(b.Columns, numbers)
	}
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("read a block of series: %w", err)
	}
	for i := 1; i < n; i++ {
		if b.Steps[i] <= b.Steps[i-1] {
			return nil, fmt.Errorf("read a block of series: step %d follows step %d", b.Steps[i], b.Steps[i-1])
		}
	}
	return b, nil
}

func sums(d *pack.Decoder, n int) []int64 {
	out := make([]int64, n)
	last := int64(0)
	for i := range out {
		last += d.Int()
		out[i] = last
	}
	return out
}

func decodeColumn(from []byte, n int) ([]float64, error) {
	d := pack.NewDecoder(from)
	present := d.Bytes()
	if present != nil && len(present) != (n+7)/8 {
		return nil, fmt.Errorf("it does not say which of %d numbers are there", n)
	}
	there := func(i int) bool { return present == nil || present[i/8]>>(i%8)&1 == 1 }
	column, count := make([]float64, n), 0
	for i := range column {
		if column[i] = missing; there(i) {
			count++
		}
	}
	if count == 0 {
		return column, d.End()
	}
	form, last := d.Byte(), int64(0)
	var same float64
	switch form {
	case constant:
		same = given(d.Float())
	case integers, singles, doubles:
	default:
		return nil, fmt.Errorf("the form %d of its numbers is not known", form)
	}
	for i := range column {
		if !there(i) {
			continue
		}
		switch form {
		case constant:
			column[i] = same
		case integers:
			last += d.Int()
			column[i] = float64(last)
		case singles:
			column[i] = given(float64(d.Float32()))
		default:
			column[i] = given(d.Float())
		}
	}
	return column, d.End()
}
