package runs

import (
	"reflect"
	"testing"
	"time"
)

func TestRecordsAreAsEncodingJSONWritesThem(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)
	elsewhere := at.In(time.FixedZone("", 3600)).Truncate(time.Second)
	for name, r := range map[string]operationRecord{
		"everything":   *whole[operationRecord](),
		"zero":         {},
		"plain":        {Kind: OpForwardBackward, Hash: "00ff", Owner: "ann", Session: "6f6d", Time: at},
		"forward only": {Kind: OpForwardBackward, Time: elsewhere, ForwardOnly: true},
		"fault":        {Kind: OpOptimStep, Time: at, Fault: &Failure{Message: "a \"quoted\" <word> & more…\n", Category: CategoryUser}},
		"odd texts":    {Kind: "\x00", Hash: "\"", Owner: `\`, Session: "<>&\u2028é\x7f\xff", Time: at},
	} {
		if got, want := string(r.json()), string(mustJSON(r)); got != want {
			t.Errorf("operation, %s:\n%s, wanted\n%s", name, got, want)
		}
	}
	for name, r := range map[string]resultRecord{
		"everything":       *whole[resultRecord](),
		"zero":             {},
		"plain":            {Kind: OpForwardBackward, Position: 7, Size: 300, Begun: at, Done: at.Add(time.Nanosecond)},
		"failure":          {Kind: OpSample, Failure: &Failure{Message: "<é>", Category: CategoryServer}, Done: elsewhere},
		"negative":         {Kind: OpSample, Position: -1, Size: -2},
		"ran":              {Kind: OpOptimStep, Ran: &ranRecord{Cycle: 3, Begin: at, End: elsewhere}},
		"ran, interrupted": {Kind: OpOptimStep, Done: at, Ran: &ranRecord{Cycle: 3, Boot: "a \"boot\"", Begin: at, End: at, SamplingTurns: 2, Sampling: time.Second}},
		"ran at no time":   {Kind: OpOptimStep, Ran: &ranRecord{}},
	} {
		if got, want := string(r.json()), string(mustJSON(r)); got != want {
			t.Errorf("result, %s:\n%s, wanted\n%s", name, got, want)
		}
	}
	for name, r := range map[string]usageRecord{
		"everything": *whole[usageRecord](),
		"zero":       {},
		"plain":      {SessionID: "6f6d", BaseModel: "tinsmith/tiny-chat", Type: UsageTraining},
		"odd texts":  {SessionID: "6f6d", ProjectID: "a \"project\"", BaseModel: "é", Type: UsageTraining},
	} {
		if got, want := string(r.json()), string(mustJSON(r)); got != want {
			t.Errorf("usage, %s:\n%s, wanted\n%s", name, got, want)
		}
	}
}

// whole makes a value all of whose fields are set, also those that are new.
func whole[T any]() *T {
	var v T
	fill(reflect.ValueOf(&v).Elem())
	return &v
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		v.SetBytes([]byte{1, 62, 255})
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1e9, 1).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.SetInt(7)
	}
}
