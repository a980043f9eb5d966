package wire

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// The fields of a result, by hand: it is the answer to every pass, and as messages its numbers would be copied three times.
const (
	outputType    = 1 // of ForwardBackwardOutput
	outputRecords = 2
	outputMetrics = 3

	recordFields = 2 // of ArrayRecord
	recordDatums = 3

	entryKey   = 1 // of every map
	entryValue = 2

	tensorData     = 1 // of BatchedTensor
	tensorOffsets  = 2
	tensorDType    = 3
	tensorTrailing = 4
)

// output is one named field of a result: the values of each datum.
type output struct {
	name   string
	values [][]float32
}

// outputs are the fields of datums from … to-1: their log-probabilities and, where the backend tells it, what each target adds to the loss.
func outputs(result *runs.ForwardBackwardResult, from, to int) []output {
	fields := []output{{"logprobs", result.Logprobs[from:to]}}
	if len(result.Terms) == len(result.Logprobs) {
		fields = append(fields, output{"elementwise_loss", result.Terms[from:to]})
	}
	return fields
}

// EncodeForwardBackwardOutput writes the protobuf result. Datums with targets of different second dimension go into different records, since a record is
// rectangular; order is kept.
func EncodeForwardBackwardOutput(result *runs.ForwardBackwardResult) ([]byte, error) {
	b := appendText(make([]byte, 0, OutputBytes(result, true)), outputType, "ArrayRecord")
	for from := 0; from < len(result.Logprobs); {
		to := from + 1
		for to < len(result.Logprobs) && result.K[to] == result.K[from] {
			to++
		}
		b = appendOutputRecord(b, outputs(result, from, to), to-from, result.K[from])
		from = to
	}
	for _, name := range slices.Sorted(maps.Keys(result.Metrics)) {
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("encode forward_backward result: the name of metric %q is not UTF-8", name)
		}
		const value = 1 + 8
		b = appendHead(b, outputMetrics, sizeOfBytes(entryKey, len(name))+value)
		b = appendText(b, entryKey, name)
		b = protowire.AppendFixed64(protowire.AppendTag(b, entryValue, protowire.Fixed64Type), math.Float64bits(result.Metrics[name]))
	}
	return b, nil
}

// appendOutputRecord writes fields of so many datums of shape (N), or (N, k) with k > 0.
func appendOutputRecord(b []byte, fields []output, datums, k int) []byte {
	size := sizeOfVarint(recordDatums, uint64(datums))
	for _, f := range fields {
		entry, _, _ := f.sizes(k)
		size += sizeOfBytes(recordFields, entry)
	}
	b = appendHead(b, outputRecords, size)
	for _, f := range fields {
		b = f.append(b, k)
	}
	return appendVarint(b, recordDatums, uint64(datums))
}

// sizes are the bytes of the field's entry in its record, of the tensor in it, and of the tensor's data.
func (f output) sizes(k int) (entry, tensor, data int) {
	offsets := 8 * (len(f.values) + 1)
	for _, x := range f.values {
		data += 4 * len(x)
	}
	tensor = sizeOfBytes(tensorOffsets, offsets) + sizeOfVarint(tensorDType, uint64(tinkerpb.DType_DTYPE_FLOAT32))
	if data > 0 {
		tensor += sizeOfBytes(tensorData, data)
	}
	if k > 0 {
		tensor += sizeOfBytes(tensorTrailing, protowire.SizeVarint(uint64(k)))
	}
	return sizeOfBytes(entryKey, len(f.name)) + sizeOfBytes(entryValue, tensor), tensor, data
}

// append writes the field's entry.
func (f output) append(b []byte, k int) []byte {
	entry, tensor, data := f.sizes(k)
	b = appendText(appendHead(b, recordFields, entry), entryKey, f.name)
	b = appendHead(b, entryValue, tensor)
	if data > 0 {
		b = appendHead(b, tensorData, data)
		for _, x := range f.values {
			for _, v := range x {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
			}
		}
	}
	b = binary.LittleEndian.AppendUint64(appendHead(b, tensorOffsets, 8*(len(f.values)+1)), 0)
	end := uint64(0)
	for _, x := range f.values {
		end += uint64(4 * len(x))
		b = binary.LittleEndian.AppendUint64(b, end)
	}
	b = appendVarint(b, tensorDType, uint64(tinkerpb.DType_DTYPE_FLOAT32))
	if k > 0 {
		b = protowire.AppendVarint(appendHead(b, tensorTrailing, protowire.SizeVarint(uint64(k))), uint64(k))
	}
	return b
}

// appendHead writes what comes before the bytes of a text, a message or packed numbers.
func appendHead(b []byte, field protowire.Number, length int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(length))
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	return append(appendHead(b, field, len(s)), s...)
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func sizeOfBytes(field protowire.Number, length int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(length)
}

func sizeOfVarint(field protowire.Number, v uint64) int {
	return protowire.SizeTag(field) + protowire.SizeVarint(v)
}
