package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
	"github.com/tinsmith/tinsmith/plugins"
)

// bodyOfSDK3 is what SDK 0.3.0 sends: no type in a chunk, floats as Python prints them.
const bodyOfSDK3 = `{"forward_backward_input":{"data":[{"loss_fn_inputs":{
	"target_tokens":{"data":[2,3,4],"dtype":"int64","shape":[3]},"weights":{"data":[0.0,0.10000000149011612,1.0],"dtype":"float32","shape":[3]}},
	"model_input":{"chunks":[{"tokens":[1,2]},{"tokens":[3]}]}}],"loss_fn":"ppo","loss_fn_config":{"clip_low_threshold":0.5}},"model_id":"m","seq_id":7}`

// bodyOfSDK23 is what SDK 0.23.4 sends to /forward: types, and a sparse tensor.
const bodyOfSDK23 = `{"forward_input":{"data":[{"loss_fn_inputs":{
	"target_tokens":{"data":[7,8,9],"dtype":"int64","shape":[2,3],"sparse_crow_indices":[0,1,3],"sparse_col_indices":[2,0,1]}},
	"model_input":{"chunks":[{"tokens":[1,2],"type":"encoded_text"}]}}],"loss_fn":"cross_entropy"},"model_id":"m","seq_id":1}`

func TestDecodeForwardBackwardJSON(t *testing.T) {
	for _, c := range []struct {
		name, body string
		pass       Pass
		want       runs.ForwardBackward
	}{
		{"SDK 0.3.0", bodyOfSDK3, ForwardBackward, runs.ForwardBackward{
			Operation: runs.Operation{RunID: "m", Seq: 7}, Loss: "ppo", Config: map[string]float64{"clip_low_threshold": 0.5},
			Data: []runs.Datum{{Tokens: []int32{1, 2, 3}, Inputs: map[string]runs.Tensor{
				"target_tokens": {Shape: []int{3}, Ints: []int64{2, 3, 4}}, "weights": {Shape: []int{3}, Floats: []float32{0, 0.1, 1}},
			}}},
		}},
		{"no number", `{"model_id":"m","forward_backward_input":{}}`, ForwardBackward, runs.ForwardBackward{
			Operation: runs.Operation{RunID: "m", Unnumbered: true}, Config: map[string]float64{},
		}},
		{"the number null", `{"model_id":"m","seq_id":null,"forward_backward_input":{}}`, ForwardBackward, runs.ForwardBackward{
			Operation: runs.Operation{RunID: "m", Unnumbered: true}, Config: map[string]float64{},
		}},
		{"SDK 0.23.4, forward", bodyOfSDK23, Forward, runs.ForwardBackward{
			Operation: runs.Operation{RunID: "m", Seq: 1}, Loss: "cross_entropy", Config: map[string]float64{}, ForwardOnly: true,
			Data: []runs.Datum{{Tokens: []int32{1, 2}, Inputs: map[string]runs.Tensor{"target_tokens": {Shape: []int{2, 3}, Ints: []int64{0, 0, 7, 8, 9, 0}}}}},
		}},
		{
			"escapes, spaces, other keys, no shape",
			" { \"mod\\u0065l_id\" : \"m\\u00e9\" , \"seq_id\" : 2 , \"forward_only\" : true , \"type\" : {\"a\":[\"]}\\\"\",{}]} ,\n \"forward_backward_input\" : { \"new\" : [ [ ] , { } , \"\\\\\" ] , \"loss_fn_config\" : { \"id\" : \"L\" } ,\"loss_fn\":\"custom\"," +
				"\"data\" : [ { \"model_input\" : { \"chunks\" : [ ] } , \"loss_fn_inputs\" : { \"weights\" : { \"shape\" : null , \"dtype\" : \"float32\" , \"data\" : [ -1e-3 , 1E2 , 0 ] } } } ] } }",
			ForwardBackward,
			runs.ForwardBackward{
				Operation: runs.Operation{RunID: "mé", Seq: 2}, Loss: "custom", Config: map[string]float64{}, ConfigText: map[string]string{"id": "L"}, ForwardOnly: true,
				Data: []runs.Datum{{Inputs: map[string]runs.Tensor{"weights": {Shape: []int{3}, Floats: []float32{-1e-3, 100, 0}}}}},
			},
		},
		{
			"no number", `{"model_id":"m","seq_id":null,"forward_backward_input":{}}`, ForwardBackward,
			runs.ForwardBackward{Operation: runs.Operation{RunID: "m", Unnumbered: true}, Config: map[string]float64{}},
		},
		{
			"names that come twice", strings.Replace(bodyOfSDK3, `"loss_fn":"ppo"`, `"loss_fn":"cross_entropy","data":[{"model_input":{"chunks":[{"tokens":[9]}],"chunks":[{"tokens":[4]}]},"loss_fn_inputs":{"weights":{"shape":[5],"data":[5],"dtype":"float32","shape":[1]}}}]`, 1), ForwardBackward,
			runs.ForwardBackward{
				Operation: runs.Operation{RunID: "m", Seq: 7}, Loss: "cross_entropy", Config: map[string]float64{"clip_low_threshold": 0.5},
				Data: []runs.Datum{{Tokens: []int32{4}, Inputs: map[string]runs.Tensor{"weights": {Shape: []int{1}, Floats: []float32{5}}}}},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := DecodeForwardBackwardJSON([]byte(c.body), c.pass, freely)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

// passOf is a body whose one datum is that text.
func passOf(datum string) string {
	return `{"model_id":"m","seq_id":3,"forward_backward_input":{"loss_fn":"cross_entropy","data":[` + datum + `]}}`
}

func TestRefusalsOfJSON(t *testing.T) {
	chunk := func(text string) string { return passOf(`{"model_input":{"chunks":[` + text + `]}}`) }
	tensor := func(text string) string { return passOf(`{"loss_fn_inputs":{"weights":` + text + `}}`) }
	for _, c := range []struct{ name, body, want string }{
		{"no input", `{"model_id":"m","seq_id":3}`, "forward_backward_input: is required"},
		{"input of the other pass", `{"model_id":"m","seq_id":3,"forward_input":{"data":[]}}`, "forward_backward_input: is required"},
		{"null input", `{"model_id":"m","seq_id":3,"forward_backward_input":null}`, "forward_backward_input: a JSON null is not allowed here, expected an object"},
		{"data no list", `{"model_id":"m","seq_id":3,"forward_backward_input":{"data":{}}}`, "data: a JSON object is not allowed here, expected a list"},
		{"a datum that is none", passOf(`5`), "data[0]: a JSON number is not allowed here, expected an object"},
		{"an image", chunk(`{"type":"image","data":"AA==","format":"png","height":1,"width":1,"tokens":5}`), "data[0].model_input.chunks[0]: image chunks are not supported"},
		{"an unknown chunk", chunk(`{"type":"song","tokens":[1]}`), `data[0].model_input.chunks[0].type: "song" is unknown`},
		{"a chunk without tokens", chunk(`{}`), "data[0].model_input.chunks[0].tokens: is required"},
		{"null for a token", chunk(`{"tokens":[1,null]}`), "data[0].model_input.chunks[0].tokens[1]: a JSON null is not allowed here, expected a whole number"},
		{"half a token", chunk(`{"tokens":[1.5]}`), "tokens[0]: 1.5 is not a whole number"},
		{"a token of 64 bits", chunk(`{"tokens":[4294967297]}`), "tokens[0]: 4294967297 is not a whole number from -2147483648 to 2147483647"},
		{"null for a weight", tensor(`{"data":[null],"dtype":"float32"}`), "data[0].loss_fn_inputs.weights.data[0]: a JSON null is not allowed here, expected a finite number"},
		{"a weight that is text", tensor(`{"data":["NaN"],"dtype":"float32"}`), "a JSON text is not allowed here, expected a finite number"},
		{"a weight beyond float32", tensor(`{"data":[0,1e39],"dtype":"float32"}`), "data[0].loss_fn_inputs.weights.data[1]: 1e+39 is too large for a float32"},
		{"a weight beyond float64", tensor(`{"data":[-1e999],"dtype":"float32"}`), "-1e999 is too large for a number"},
		{"a target beyond int64", tensor(`{"data":[9223372036854775808],"dtype":"int64"}`), "9223372036854775808 is not a whole number"},
		{"lists in the data", tensor(`{"data":[[1]],"dtype":"float32"}`), "data[0]: a JSON list is not allowed here"},
		{"no data", tensor(`{"dtype":"float32"}`), "data[0].loss_fn_inputs.weights.data: is required"},
		{"no dtype", tensor(`{"data":[1]}`), "data[0].loss_fn_inputs.weights.dtype: is required: float32 or int64"},
		{"another dtype", tensor(`{"data":[1],"dtype":"bfloat16"}`), `dtype: "bfloat16" is not one of float32, int64`},
		{"too few", tensor(`{"data":[1],"dtype":"float32","shape":[2]}`), "1 elements do not fill shape [2]"},
		{"negative shape", tensor(`{"data":[1],"dtype":"float32","shape":[-1]}`), "negative dimension"},
		{"huge shape", tensor(`{"data":[],"dtype":"float32","shape":[1099511627776,1099511627776],"sparse_crow_indices":[0],"sparse_col_indices":[]}`), "more than 16777216 elements"},
		{"half sparse", tensor(`{"data":[],"dtype":"float32","shape":[1,1],"sparse_crow_indices":[0,0]}`), "sparse_col_indices: is required for a sparse tensor"},
		{"column outside", tensor(`{"data":[1],"dtype":"float32","shape":[1,2],"sparse_crow_indices":[0,1],"sparse_col_indices":[2]}`), "column 2 is not in 0…1"},
		{"null for a setting", `{"model_id":"m","seq_id":3,"forward_backward_input":{"loss_fn_config":{"beta":null}}}`, "loss_fn_config.beta: a JSON null is not allowed here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := DecodeForwardBackwardJSON([]byte(c.body), ForwardBackward, freely)
			if err != nil {
				t.Fatalf("refused at submission, which loses its place in the order: %v", err)
			}
			if !strings.Contains(got.Refusal, c.want) || got.Data != nil || got.Seq != 3 || got.RunID != "m" {
				t.Errorf("got %q (seq %d of %q), want %q", got.Refusal, got.Seq, got.RunID, c.want)
			}
		})
	}
	for _, c := range []struct{ name, body, want string }{
		{"not JSON", `{"model_id":"m",}`, "body: not valid JSON"},
		{"NaN as Python writes it", `{"model_id":"m","seq_id":1,"x":NaN}`, "body: not valid JSON"},
		{"a list", `[]`, "body: a JSON list is not allowed here"},
		{"no model", `{"seq_id":1,"forward_backward_input":{}}`, "model_id: is required"},
		{"a model that is a number", `{"model_id":5}`, "model_id: a JSON number is not allowed here"},
		{"number too large", `{"model_id":"m","seq_id":4294967297}`, "seq_id: 4294967297 is not a whole number from 1 to 2147483647"},
		{"number zero", `{"model_id":"m","seq_id":0}`, "seq_id: 0 is not"},
	} {
		if _, err := DecodeForwardBackwardJSON([]byte(c.body), ForwardBackward, freely); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// What a body is made into is claimed before, and bounded.
func TestMemoryOfJSON(t *testing.T) {
	many := strings.Repeat(`{},`, maxParts) + `{}`
	got, err := DecodeForwardBackwardJSON([]byte(passOf(many)), ForwardBackward, freely)
	if err != nil || !strings.Contains(got.Refusal, "more than 262144 in all") || got.Seq != 3 {
		t.Errorf("%d datums: %q, %v", maxParts+1, got.Refusal, err)
	}
	full := errors.New("full")
	for name, c := range map[string]struct {
		body string
		most int64
	}{
		"parts":    {passOf(strings.Repeat(`{},`, 100_000) + `{}`), 20_000_000},
		"numbers":  {passOf(`{"model_input":{"chunks":[{"tokens":[` + strings.Repeat(`0,`, 100_000) + `0]}]}}`), 2_000_000},
		"one text": {passOf(`{"x":"` + strings.Repeat(`y`, 100_000) + `"}`), 200_000},
	} {
		taken := int64(0)
		_, err := DecodeForwardBackwardJSON([]byte(c.body), ForwardBackward, func(n int64) error {
			if taken += n; taken > c.most {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) {
			t.Errorf("%s: %d bytes were claimed, %v", name, taken, err)
		}
	}
}

// jsonOf writes a message as the SDK writes the same request in JSON.
func jsonOf(m *tinkerpb.ForwardBackwardRequest) []byte {
	data := []any{}
	for _, d := range m.Data {
		chunks, inputs := []any{}, map[string]any{}
		for _, c := range d.ModelInput {
			chunks = append(chunks, map[string]any{"tokens": int32s(c.GetEncodedText().GetTokens())})
		}
		for name, tensor := range d.LossFnInputs {
			inputs[name] = map[string]any{"data": int64s(tensor.GetDense()), "dtype": "int64", "shape": tensor.Shape}
			if tensor.Dtype == tinkerpb.DType_DTYPE_FLOAT32 {
				inputs[name] = map[string]any{"data": float32s(tensor.GetDense()), "dtype": "float32", "shape": tensor.Shape}
			}
		}
		data = append(data, map[string]any{"model_input": map[string]any{"chunks": chunks}, "loss_fn_inputs": inputs})
	}
	b, _ := json.Marshal(map[string]any{
		"model_id": m.ModelId, "seq_id": m.SeqId, "forward_only": m.ForwardOnly, "forward_backward_input": map[string]any{"data": data, "loss_fn": m.LossFn, "loss_fn_config": m.LossFnConfig},
	})
	return b
}

// FuzzDecodeForwardBackwardJSON: no text makes the decoder fail in another way than by an error, and every tensor that it gives is whole and finite.
func FuzzDecodeForwardBackwardJSON(f *testing.F) {
	for _, s := range []string{bodyOfSDK3, bodyOfSDK23, passOf(`{}`), passOf(`{"model_input":{"chunks":[{"type":null,"tokens":[]}]},"loss_fn_inputs":{"":{"data":[],"dtype":"int64","shape":[]}}}`), `[]`, `"`, `{"a":"\"","b":[{}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := DecodeForwardBackwardJSON(body, ForwardBackward, freely)
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
				for _, v := range tensor.Floats {
					if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
						t.Errorf("%s: %v from JSON", name, v)
					}
				}
			}
		}
	})
}

// FuzzTwoForms: what protobuf says and what the same request says in JSON are the same.
func FuzzTwoForms(f *testing.F) {
	f.Add(unhexed(b1))
	f.Add(unhexed(b4))
	f.Fuzz(func(t *testing.T, body []byte) {
		var m tinkerpb.ForwardBackwardRequest
		if proto.Unmarshal(body, &m) != nil || m.ModelId == "" || m.SeqId < 1 || len(m.LossFnConfigV2) > 0 || m.LossFnConfig == nil {
			return
		}
		for _, v := range m.LossFnConfig {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return
			}
		}
		for _, d := range m.Data {
			if len(d.ModelInputSpans)+len(d.LossFnInputSpans) > 0 {
				return // JSON has none
			}
			for _, c := range d.ModelInput {
				if c.GetEncodedText() == nil || len(c.GetEncodedText().Tokens)%4 != 0 {
					return
				}
			}
			for _, tensor := range d.LossFnInputs {
				if tensor.GetSparseCsr() != nil || tensor.Dtype != tinkerpb.DType_DTYPE_FLOAT32 && tensor.Dtype != tinkerpb.DType_DTYPE_INT64 || len(tensor.GetDense())%8 != 0 {
					return
				}
				for _, v := range float32s(tensor.GetDense()) {
					if tensor.Dtype == tinkerpb.DType_DTYPE_FLOAT32 && (math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)) {
						return
					}
				}
			}
		}
		want, err := DecodeForwardBackward(body, freely)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeForwardBackwardJSON(jsonOf(&m), ForwardBackward, freely)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
	})
}

func unhexed(s string) []byte {
	b := make([]byte, len(s)/2)
	_, _ = fmt.Sscanf(s, "%x", &b)
	return b
}

func TestEncodeForwardBackwardOutputJSON(t *testing.T) {
	r := runs.ForwardBackwardResult{K: []int{0, 2}, ForwardBackwardResult: plugins.ForwardBackwardResult{
		Logprobs: [][]float32{{-0.5, -1}, {-2, -3, -4, -5}}, Terms: [][]float32{{0.25, 0}, {2, 3, 4, float32(math.Inf(1))}}, Metrics: map[string]float64{"loss:sum": 1.5, "bad:sum": math.NaN()},
	}}
	const (
		first  = `{"logprobs":{"data":[-0.5,-1],"dtype":"float32","shape":[2]}`
		second = `{"logprobs":{"data":[-2,-3,-4,-5],"dtype":"float32","shape":[2,2]}`
		terms1 = `,"elementwise_loss":{"data":[0.25,0],"dtype":"float32","shape":[2]}`
		terms2 = `,"elementwise_loss":{"data":[2,3,4,null],"dtype":"float32","shape":[2,2]}`
		head   = `{"loss_fn_output_type":"ArrayRecord","loss_fn_outputs":[`
		end    = `}],"metrics":{"loss:sum":1.5}}`
	)
	got, err := EncodeForwardBackwardOutputJSON(&r)
	if want := head + first + terms1 + "}," + second + terms2 + end; err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	r.Terms = nil
	got, err = EncodeForwardBackwardOutputJSON(&r)
	if want := head + first + "}," + second + end; err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}
