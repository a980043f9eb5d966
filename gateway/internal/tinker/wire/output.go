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

// EncodeForwardBackwardOutput writes the protobuf result. Datums with targets of different second dimension go into different records, since a record is
// rectangular; order is kept.
func EncodeForwardBackwardOutput(result *runs.ForwardBackwardResult) ([]byte, error) {
	size := 64 + 64*len(result.Metrics)
	for _, logprobs := range result.Logprobs {
		size += 8 + 4*len(logprobs)
	}
	b := appendText(make([]byte, 0, size+64), outputType, "ArrayRecord")
	for from := 0; from < len(result.Logprobs); {
		to := from + 1
		for to < len(result.Logprobs) && result.K[to] == result.K[from] {
			to++
		}
		b = appendOutputRecord(b, result.Logprobs[from:to], result.K[from])
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

// appendOutputRecord writes the log-probabilities of datums of shape (N), or (N, k) with k > 0.
func appendOutputRecord(b []byte, logprobs [][]float32, k int) []byte {
	const field = "logprobs"
	data, offsets := 0, 8*(len(logprobs)+1)
	for _, x := range logprobs {
		data += 4 * len(x)
	}
	tensor := sizeOfBytes(tensorOffsets, offsets) + sizeOfVarint(tensorDType, uint64(tinkerpb.DType_DTYPE_FLOAT32))
	if data > 0 {
		tensor += sizeOfBytes(tensorData, data)
	}
	if k > 0 {
		tensor += sizeOfBytes(tensorTrailing, protowire.SizeVarint(uint64(k)))
	}
	entry := sizeOfBytes(entryKey, len(field)) + sizeOfBytes(entryValue, tensor)

	b = appendHead(b, outputRecords, sizeOfBytes(recordFields, entry)+sizeOfVarint(recordDatums, uint64(len(logprobs))))
	b = appendText(appendHead(b, recordFields, entry), entryKey, field)
	b = appendHead(b, entryValue, tensor)
	if data > 0 {
		b = appendHead(b, tensorData, data)
		for _, x := range logprobs {
			for _, v := range x {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
			}
		}
	}
	b = binary.LittleEndian.AppendUint64(appendHead(b, tensorOffsets, offsets), 0)
	end := uint64(0)
	for _, x := range logprobs {
		end += uint64(4 * len(x))
		b = binary.LittleEndian.AppendUint64(b, end)
	}
	b = appendVarint(b, tensorDType, uint64(tinkerpb.DType_DTYPE_FLOAT32))
	if k > 0 {
		b = protowire.AppendVarint(appendHead(b, tensorTrailing, protowire.SizeVarint(uint64(k))), uint64(k))
	}
	return appendVarint(b, recordDatums, uint64(len(logprobs)))
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
