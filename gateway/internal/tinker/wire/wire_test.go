package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
	"github.com/tinsmith/tinsmith/plugins"
)

// Messages made by the converters of the official SDK: 0.25 (b1, b2, b3) and 0.38 (b4, b5).
const (
	b1 = "0a016d10011a640a100a0e0a0c01000000020000000300000012300a0d7461726765745f746f6b656e73121f0a180200000000000000030000000000000004000000000000001802220103121e0a077765696768747312130a0c000000000000803f0000803f1801220103220370706f2a1d0a12636c69705f6c6f775f7468726573686f6c6411000000000000e03f3001"
	b2 = "0a0b41727261795265636f7264123a12360a086c6f6770726f6273122a0a0c000000bf000080bf000000c01218000000000000000008000000000000000c00000000000000180118021a130a086c6f73733a73756d11000000000000f83f"
	b3 = "0a14120805000000060000001a08000080be000000bf12080000c07f000080bf1a280a10000000000000000007000000080000001210804fc3c7804fc3c7000000bf000080bf18022002"
	b4 = "0a016d10021a530a0c0a0a0a08010000000200000012280a0d7461726765745f746f6b656e7312170a100200000000000000030000000000000018022201021a070a050a016118011a0712050a01611801220712050a016118022206637573746f6d3a0e0a076c6f73735f6964120312014c"
	b5 = "0a300801120805000000060000001a08000080be000000bf22180a0805000000070000001208000080be000080be1801200212080000c07f000080bf2a2a12220a04000040c01210000000000000000001000000000000001a080200000000000000180122020103322c0a180a100800000000000000090000000000000018022202010212100a08000080bf000000c0180122020102"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// freely gives all the memory that is asked for.
func freely(int64) error { return nil }

func TestDecodeForwardBackward(t *testing.T) {
	t.Run("0.25 ppo, forward only", func(t *testing.T) {
		got, err := DecodeForwardBackward(unhex(t, b1), freely)
		if err != nil {
			t.Fatal(err)
		}
		want := runs.ForwardBackward{
			Operation: runs.Operation{RunID: "m", Seq: 1}, Loss: "ppo", Config: map[string]float64{"clip_low_threshold": 0.5}, ForwardOnly: true,
			Data: []runs.Datum{{Tokens: []int32{1, 2, 3}, Inputs: map[string]runs.Tensor{
				"target_tokens": {Shape: []int{3}, Ints: []int64{2, 3, 4}}, "weights": {Shape: []int{3}, Floats: []float32{0, 1, 1}},
			}}},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
	t.Run("0.38 spans and text settings", func(t *testing.T) {
		got, err := DecodeForwardBackward(unhex(t, b4), freely)
		if err != nil {
			t.Fatal(err)
		}
		want := runs.ForwardBackward{
			Operation: runs.Operation{RunID: "m", Seq: 2}, Loss: "custom", Config: map[string]float64{}, ConfigText: map[string]string{"loss_id": "L"},
			Data: []runs.Datum{{
				Tokens: []int32{1, 2}, Inputs: map[string]runs.Tensor{"target_tokens": {Shape: []int{2}, Ints: []int64{2, 3}}},
				InputSpans: []runs.Span{{SequenceID: "a", Length: 1}, {Sampled: true, SequenceID: "a", Length: 1}},
				LossSpans:  []runs.Span{{Sampled: true, SequenceID: "a", Length: 2}},
			}},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
}

func TestRefusals(t *testing.T) {
	text := func(b []byte) *tinkerpb.Chunk {
		return &tinkerpb.Chunk{Chunk: &tinkerpb.Chunk_EncodedText{EncodedText: &tinkerpb.EncodedTextChunk{Tokens: b}}}
	}
	ones := bytesOfInt32s([]int32{1, 1})
	datum := func(tensor *tinkerpb.Tensor) *tinkerpb.Datum {
		return &tinkerpb.Datum{ModelInput: []*tinkerpb.Chunk{text(ones)}, LossFnInputs: map[string]*tinkerpb.Tensor{"weights": tensor}}
	}
	dense := func(n int, dtype tinkerpb.DType, shape ...int64) *tinkerpb.Tensor {
		return &tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_Dense{Dense: make([]byte, n)}, Dtype: dtype, Shape: shape}
	}
	sparse := func(crow, col []int64, values int, shape ...int64) *tinkerpb.Tensor {
		return &tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_SparseCsr{SparseCsr: &tinkerpb.SparseCsr{CrowIndices: bytesOfInt64s(crow), ColIndices: bytesOfInt64s(col), Values: make([]byte, 4*values)}}, Dtype: tinkerpb.DType_DTYPE_FLOAT32, Shape: shape}
	}
	f32 := tinkerpb.DType_DTYPE_FLOAT32
	for _, c := range []struct {
		name  string
		datum *tinkerpb.Datum
		want  string
	}{
		{"image", &tinkerpb.Datum{ModelInput: []*tinkerpb.Chunk{{Chunk: &tinkerpb.Chunk_Image{Image: &tinkerpb.ImageChunk{}}}}}, "data[0].model_input.chunks[0]: image chunks are not supported"},
		{"audio", &tinkerpb.Datum{ModelInput: []*tinkerpb.Chunk{{Chunk: &tinkerpb.Chunk_Dmel{Dmel: &tinkerpb.DmelChunk{}}}}}, "dmel chunks are not supported"},
		{"empty chunk", &tinkerpb.Datum{ModelInput: []*tinkerpb.Chunk{{}}}, "unknown kind of chunk"},
		{"half a token", &tinkerpb.Datum{ModelInput: []*tinkerpb.Chunk{text([]byte{1, 2, 3})}}, "3 bytes of tokens"},
		{"bfloat16", datum(dense(4, tinkerpb.DType_DTYPE_BFLOAT16, 2)), "dtype DTYPE_BFLOAT16 is not one of"},
		{"too few", datum(dense(4, f32, 2)), "1 elements do not fill shape [2]"},
		{"not whole", datum(dense(5, f32, 1)), "5 bytes are not a multiple"},
		{"negative shape", datum(dense(4, f32, -1)), "negative dimension"},
		{"huge shape", datum(sparse([]int64{0}, nil, 0, 1<<40, 1<<40)), "more than 16777216 elements"},
		{"sparse vector", datum(sparse([]int64{0, 0}, nil, 0, 1)), "two dimensions"},
		{"column outside", datum(sparse([]int64{0, 1}, []int64{2}, 1, 1, 2)), "column 2 is not in 0…1"},
		{"falling offsets", datum(sparse([]int64{0, 2, 1}, []int64{0}, 1, 2, 2)), "row offsets must not fall"},
		{"negative offset", datum(sparse([]int64{0, -1, 1}, []int64{0}, 1, 2, 2)), "row offsets must not fall"},
		{"same column twice", datum(sparse([]int64{0, 2}, []int64{0, 0}, 2, 1, 2)), "columns of row 0 must rise"},
		{"no span", &tinkerpb.Datum{ModelInput: []*tinkerpb.Chunk{text(ones)}, ModelInputSpans: []*tinkerpb.ProvenanceSpan{{}}}, "model_input_spans[0]: must be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{ModelId: "m", SeqId: 3, Data: []*tinkerpb.Datum{c.datum}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeForwardBackward(body, freely)
			if err != nil {
				t.Fatalf("refused at submission, which loses its place in the order: %v", err)
			}
			if !strings.Contains(got.Refusal, c.want) || got.Data != nil || got.Seq != 3 {
				t.Errorf("got %q (seq %d), want %q", got.Refusal, got.Seq, c.want)
			}
		})
	}
	body, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{ModelId: "m", LossFnConfigV2: map[string]*tinkerpb.LossConfigValue{"beta": {Value: &tinkerpb.LossConfigValue_Number{Number: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeForwardBackward(body, freely); err != nil || !got.Unnumbered || got.Seq != 0 {
		t.Errorf("a request without a number: %+v, %v", got, err)
	}
	for _, c := range []struct {
		name string
		m    *tinkerpb.ForwardBackwardRequest
		want string
	}{
		{"no model", &tinkerpb.ForwardBackwardRequest{SeqId: 1}, "model_id: is required"},
		{"negative number", &tinkerpb.ForwardBackwardRequest{ModelId: "m", SeqId: -1}, "seq_id: -1 is not"},
	} {
		body, _ := proto.Marshal(c.m)
		if _, err := DecodeForwardBackward(body, freely); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestSparseBecomesDense(t *testing.T) {
	left := int64(6)
	got, err := decodeTensor("t", &tinkerpb.Tensor{Dtype: tinkerpb.DType_DTYPE_INT64, Shape: []int64{2, 3}, Encoding: &tinkerpb.Tensor_SparseCsr{SparseCsr: &tinkerpb.SparseCsr{
		Values: bytesOfInt64s([]int64{7, 8, 9}), CrowIndices: bytesOfInt64s([]int64{0, 1, 3}), ColIndices: bytesOfInt64s([]int64{2, 0, 1}),
	}}}, &left)
	want := runs.Tensor{Shape: []int{2, 3}, Ints: []int64{0, 0, 7, 8, 9, 0}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// equalMessages compares what two encodings mean: map order is free.
func equalMessages(t *testing.T, got, want []byte, m proto.Message) {
	t.Helper()
	other := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(got, m); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(want, other); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(m, other) {
		t.Errorf("got  %v\nwant %v", m, other)
	}
}

func TestEncodeForwardBackwardOutput(t *testing.T) {
	got, err := EncodeForwardBackwardOutput(&runs.ForwardBackwardResult{
		ForwardBackwardResult: plugins.ForwardBackwardResult{Logprobs: [][]float32{{-0.5, -1}, {-2}}, Metrics: map[string]float64{"loss:sum": 1.5}}, K: []int{0, 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := unhex(t, b2)
	var m tinkerpb.ForwardBackwardOutput
	if err := proto.Unmarshal(want, &m); err != nil {
		t.Fatal(err)
	}
	m.LossFnOutputs[0].TypeTag = "" // the SDK does not read it
	want, _ = proto.Marshal(&m)
	equalMessages(t, got, want, &tinkerpb.ForwardBackwardOutput{})
}

// What is written by hand is what the messages would be.
func TestForwardBackwardOutputIsTheMessage(t *testing.T) {
	long := make([]float32, 5000)
	for i := range long {
		long[i] = -float32(i) / 7
	}
	for name, r := range map[string]runs.ForwardBackwardResult{
		"nothing":      {},
		"only metrics": {ForwardBackwardResult: plugins.ForwardBackwardResult{Metrics: map[string]float64{"": 0, "b": -1, "a:sum": math.Inf(1), "é": math.Pi}}},
		"no tokens":    {ForwardBackwardResult: plugins.ForwardBackwardResult{Logprobs: [][]float32{{}, nil}}, K: []int{0, 0}},
		"several":      {ForwardBackwardResult: plugins.ForwardBackwardResult{Logprobs: [][]float32{{-1, 2}, {}, long}, Metrics: map[string]float64{"loss:sum": 1.5}}, K: []int{0, 0, 0}},
		"with terms": {ForwardBackwardResult: plugins.ForwardBackwardResult{
			Logprobs: [][]float32{long, {-1, -2}, {-3}}, Terms: [][]float32{long, {0.5, 0}, {3}}}, K: []int{500, 2, 0}},
		"of two shapes": {ForwardBackwardResult: plugins.ForwardBackwardResult{Logprobs: [][]float32{long, {-1, -2}, {-3}}}, K: []int{500, 2, 0}},
	} {
		got, err := EncodeForwardBackwardOutput(&r)
		if err != nil {
			t.Fatal(err)
		}
		m := &tinkerpb.ForwardBackwardOutput{LossFnOutputType: "ArrayRecord", Metrics: r.Metrics}
		for i, x := range r.Logprobs {
			if i == 0 || r.K[i] != r.K[i-1] {
				batched := &tinkerpb.BatchedTensor{Offsets: bytesOfInt64s([]int64{0}), Dtype: tinkerpb.DType_DTYPE_FLOAT32}
				if r.K[i] > 0 {
					batched.TrailingShape = []int64{int64(r.K[i])}
				}
				fields := map[string]*tinkerpb.BatchedTensor{"logprobs": batched}
				if r.Terms != nil {
					fields["elementwise_loss"] = proto.Clone(batched).(*tinkerpb.BatchedTensor)
				}
				m.LossFnOutputs = append(m.LossFnOutputs, &tinkerpb.ArrayRecord{Fields: fields})
			}
			record := m.LossFnOutputs[len(m.LossFnOutputs)-1]
			record.NumDatums++
			for name, batched := range record.Fields {
				values := x
				if name == "elementwise_loss" {
					values = r.Terms[i]
				}
				batched.Data = append(batched.Data, bytesOfFloat32s(values)...)
				batched.Offsets = append(batched.Offsets, bytesOfInt64s([]int64{int64(len(batched.Data))})...)
			}
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if r.Terms != nil { // maps are in any order
			var back tinkerpb.ForwardBackwardOutput
			if err := proto.Unmarshal(got, &back); err != nil || !proto.Equal(&back, m) || len(got) != len(want) {
				t.Errorf("%s: %v, %v; wanted %v", name, &back, err, m)
			}
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s: %x, wanted %x", name, got[:min(len(got), 200)], want[:min(len(want), 200)])
		}
	}
	if _, err := EncodeForwardBackwardOutput(&runs.ForwardBackwardResult{ForwardBackwardResult: plugins.ForwardBackwardResult{Metrics: map[string]float64{"\xff": 1}}}); err == nil {
		t.Error("a name that is not UTF-8 was encoded")
	}
}

func TestRecordsAreRectangular(t *testing.T) {
	got, err := EncodeForwardBackwardOutput(&runs.ForwardBackwardResult{
		ForwardBackwardResult: plugins.ForwardBackwardResult{Logprobs: [][]float32{{-1}, {-1, -2, -3, -4}, {-5, -6}, {-7}}}, K: []int{0, 2, 2, 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	var m tinkerpb.ForwardBackwardOutput
	if err := proto.Unmarshal(got, &m); err != nil {
		t.Fatal(err)
	}
	var shapes []string
	for _, r := range m.LossFnOutputs {
		b, _ := json.Marshal([]any{r.NumDatums, r.Fields["logprobs"].TrailingShape, int64s(r.Fields["logprobs"].Offsets)})
		shapes = append(shapes, string(b))
	}
	if want := []string{"[1,null,[0,4]]", "[2,[2],[0,16,24]]", "[1,[1],[0,4]]"}; !reflect.DeepEqual(shapes, want) {
		t.Errorf("got %v, want %v", shapes, want)
	}
}

func TestEncodeSampleResponse(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name   string
		result runs.SampleResult
		want   string
	}{
		{"0.25", runs.SampleResult{
			Prompt:       plugins.PromptScores{Logprobs: []float32{nan, -1}, Top: plugins.TopLogprobs{K: 2, IDs: []int32{0, 0, 7, 8}, Logprobs: []float32{-99999, -99999, -0.5, -1}}},
			Sequences:    []runs.SampledSequence{{Tokens: []int32{5, 6}, Logprobs: []float32{-0.25, -0.5}}},
			PromptLength: 2,
		}, b3},
		{"0.38", runs.SampleResult{
			Prompt:       plugins.PromptScores{Logprobs: []float32{nan, -1}, Targets: []float32{0, 0, -3}, AltTokens: []int32{8, 9}, AltLogprobs: []float32{-1, -2}},
			Sequences:    []runs.SampledSequence{{StoppedByLength: true, Tokens: []int32{5, 6}, Logprobs: []float32{-0.25, -0.5}, Top: plugins.TopLogprobs{K: 1, IDs: []int32{5, 7}, Logprobs: []float32{-0.25, -0.25}}}},
			PromptLength: 2, TargetPromptTokens: []int32{-1, -1, 4}, TargetPromptK: 3, TargetPromptSparse: true, PromptAlternatives: 2,
		}, b5},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := EncodeSampleResponse(&c.result)
			if err != nil {
				t.Fatal(err)
			}
			equalMessages(t, got, unhex(t, c.want), &tinkerpb.SampleResponse{})
		})
	}
}

func TestSampleRequest(t *testing.T) {
	base := `"sampling_session_id":"s","seq_id":5,"num_samples":1,"prompt":{"chunks":[{"type":"encoded_text","tokens":[1,2]},{"type":"encoded_text","tokens":[3]}]}`
	for _, c := range []struct{ name, body, want string }{
		{"plain", `{` + base + `,"sampling_params":{"temperature":0.5,"top_k":-1,"top_p":1}}`, ""},
		{"image", `{"sampling_session_id":"s","seq_id":5,"prompt":{"chunks":[{"type":"image","data":"","format":"png"}]}}`, "prompt.chunks[0]: image chunks are not supported"},
		{"no tokens", `{"sampling_session_id":"s","seq_id":5,"prompt":{"chunks":[]}}`, "prompt: has no tokens"},
		{"model path", `{` + base + `,"model_path":"tinker://x"}`, "model_path: is not allowed here"},
		{"stop of the wrong type", `{` + base + `,"sampling_params":{"stop":{"a":1}}}`, "sampling_params.stop: must be"},
		{"mixed stops", `{` + base + `,"sampling_params":{"stop":["a",1]}}`, "sampling_params.stop: must be"},
		{"empty stop string", `{` + base + `,"sampling_params":{"stop":""}}`, "a stop string has 1 to"},
		{"seed", `{` + base + `,"sampling_params":{"seed":1.5}}`, "sampling_params.seed: 1.5 is not"},
		{"last n", `{` + base + `,"prompt_logprobs_last_n":0}`, "prompt_logprobs_last_n: 0 is less than 1"},
		{"target shape", `{` + base + `,"target_prompt_logprobs":{"data":[1],"dtype":"int64","shape":[1,1]}}`, "target_prompt_logprobs.shape: [1 1] is not [2, K]"},
		{"null for a token", `{"sampling_session_id":"s","seq_id":5,"prompt":{"chunks":[{"tokens":[1,null]}]}}`, "prompt.chunks[0].tokens[1]: a JSON null is not allowed here"},
		{"no tokens in a chunk", `{"sampling_session_id":"s","seq_id":5,"prompt":{"chunks":[{}]}}`, "prompt.chunks[0].tokens: is required"},
		{"an image of the first release", `{"sampling_session_id":"s","seq_id":5,"prompt":{"chunks":[{"type":"image","tokens":5}]}}`, "prompt.chunks[0]: image chunks are not supported"},
		{"null for a stop token", `{` + base + `,"sampling_params":{"stop":[1,null]}}`, "sampling_params.stop: must be"},
		{"target float", `{` + base + `,"target_prompt_logprobs":{"data":[1,2],"dtype":"float32","shape":[2,1]}}`, "target_prompt_logprobs.dtype"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r SampleRequest
			if err := json.Unmarshal([]byte(c.body), &r); err != nil {
				t.Fatal(err)
			}
			got, err := r.Sample()
			if c.want == "" {
				want := runs.Sample{SamplerID: "s", Seq: 5, Prompt: []int32{1, 2, 3}, NumSamples: 1, Params: runs.SamplingParams{Temperature: 0.5, TopK: -1, TopP: 1}}
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("got %+v, %v", got, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTargetsAreNumbers(t *testing.T) {
	for text, want := range map[string]string{
		`{"data":[1,null],"shape":[2,1]}`: "target_prompt_logprobs.data[1]: a JSON null is not allowed here",
		`{"data":[1,2.5],"shape":[2,1]}`:  "target_prompt_logprobs.data[1]: 2.5 is not a whole number",
		`{"data":"x"}`:                    "target_prompt_logprobs.data: a JSON text is not allowed here",
		`[1]`:                             "target_prompt_logprobs: a JSON list is not allowed here",
		`{"data":[1],"dtype":null,"shape":[1,1],"sparse_crow_indices":null,"more":{}}`: "",
	} {
		var tensor JSONTensor
		if err := json.Unmarshal([]byte(text), &tensor); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, wanted %q", text, err, want)
		}
	}
}

func TestParseStops(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want runs.Stops
	}{
		{"", runs.Stops{}},
		{"null", runs.Stops{}},
		{`"a"`, runs.Stops{Given: true, Strings: []string{"a"}}},
		{`["a","b"]`, runs.Stops{Given: true, Strings: []string{"a", "b"}}},
		{`[1,2]`, runs.Stops{Given: true, Tokens: []int32{1, 2}}},
		{`[]`, runs.Stops{Given: true, Strings: []string{}}},
	} {
		if got, err := ParseStops("stop", json.RawMessage(c.raw)); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v", c.raw, got, err)
		}
	}
}

func FuzzDecodeForwardBackward(f *testing.F) {
	for _, s := range []string{b1, b4} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := DecodeForwardBackward(body, freely)
		if err != nil {
			return
		}
		for _, d := range got.Data {
			for name, tensor := range d.Inputs {
				n := 1
				for _, dim := range tensor.Shape {
					n *= dim
				}
				if n != len(tensor.Ints)+len(tensor.Floats) {
					t.Errorf("%s: shape %v has %d elements", name, tensor.Shape, len(tensor.Ints)+len(tensor.Floats))
				}
			}
		}
	})
}
