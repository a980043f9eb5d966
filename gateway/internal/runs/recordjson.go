package runs

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"time"
)

// Every operation writes two records and adds to a third. They are JSON, as all records are, but written by hand: what encoding/json finds out about them anew each time is known here. The bytes are the same.

// json is what encoding/json would write.
func (r *operationRecord) json() []byte {
	b := make([]byte, 0, 320)
	b = appendJSONText(append(b, `{"kind":`...), string(r.Kind))
	b = appendJSONText(append(b, `,"hash":`...), r.Hash)
	b = appendJSONText(append(b, `,"owner":`...), r.Owner)
	b = appendJSONText(append(b, `,"session":`...), r.Session)
	b = appendJSONTime(append(b, `,"time":`...), r.Time)
	if r.ForwardOnly {
		b = append(b, `,"forward_only":true`...)
	}
	if r.Fault != nil {
		b = append(append(b, `,"fault":`...), mustJSON(r.Fault)...)
	}
	return append(b, '}')
}

// json is what encoding/json would write.
func (r *resultRecord) json() []byte {
	b := make([]byte, 0, 512)
	b = appendJSONText(append(b, `{"kind":`...), string(r.Kind))
	if r.Failure != nil {
		b = append(append(b, `,"failure":`...), mustJSON(r.Failure)...)
	}
	if r.Position != 0 {
		b = strconv.AppendInt(append(b, `,"position":`...), r.Position, 10)
	}
	if r.Kept {
		b = append(b, `,"kept":true`...)
	}
	if r.Size != 0 {
		b = strconv.AppendInt(append(b, `,"size":`...), r.Size, 10)
	}
	if !r.Begun.IsZero() {
		b = appendJSONTime(append(b, `,"begun":`...), r.Begun)
	}
	if !r.Done.IsZero() {
		b = appendJSONTime(append(b, `,"done":`...), r.Done)
	}
	if x := r.Ran; x != nil {
		b = strconv.AppendInt(append(b, `,"ran":{"cycle":`...), x.Cycle, 10)
		if x.Boot != "" {
			b = appendJSONText(append(b, `,"boot":`...), x.Boot)
		}
		b = appendJSONTime(append(b, `,"begin":`...), x.Begin)
		b = appendJSONTime(append(b, `,"end":`...), x.End)
		if x.SamplingTurns != 0 {
			b = strconv.AppendInt(append(b, `,"sampling_turns":`...), int64(x.SamplingTurns), 10)
		}
		if x.Sampling != 0 {
			b = strconv.AppendInt(append(b, `,"sampling":`...), int64(x.Sampling), 10)
		}
		b = append(b, '}')
	}
	if len(r.Stats) > 0 {
		b = append(base64.StdEncoding.AppendEncode(append(b, `,"stats":"`...), r.Stats), '"')
	}
	return append(b, '}')
}

// json is what encoding/json would write.
func (r *usageRecord) json() []byte {
	b := append(make([]byte, 0, 160), '{')
	for _, x := range [...]struct{ name, value string }{{`"session_id":`, r.SessionID}, {`"project_id":`, r.ProjectID}, {`"base_model":`, r.BaseModel}} {
		if x.value != "" {
			b = append(appendJSONText(append(b, x.name...), x.value), ',')
		}
	}
	return append(appendJSONText(append(b, `"type":`...), string(r.Type)), '}')
}

func appendJSONText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return append(b, mustJSON(s)...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendJSONTime(b []byte, t time.Time) []byte {
	b, err := t.AppendText(append(b, '"'))
	if err != nil { // a year of five digits
		panic(fmt.Sprintf("encode a time: %v", err))
	}
	return append(b, '"')
}
