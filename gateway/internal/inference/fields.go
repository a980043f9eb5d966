package inference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Fields whose type is one of several are kept as raw JSON and read here. What is read has been found to be valid JSON, but may be 16 MiB of anything.

// Given tells whether a field is there and not null.
func Given(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// AsksNothing tells whether a value means what leaving the field out means.
func AsksNothing(raw json.RawMessage) bool {
	return slices.Contains([]string{"", "null", "false", "0", `""`, "[]", "{}"}, string(raw))
}

// Elements splits a list, unless it has more than most elements.
func Elements(raw json.RawMessage, most int) ([]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	var out []json.RawMessage
	for d.More() {
		if len(out) == most {
			return nil, fmt.Errorf("more than %d elements", most)
		}
		var one json.RawMessage
		if err := d.Decode(&one); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// KindOf gives the first byte of a value, which tells its kind: { [ " t f n or a number's.
func KindOf(raw json.RawMessage) byte {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// StringOf reads a string; unlike json.Unmarshal it takes no null for one.
func StringOf(raw json.RawMessage) (string, error) {
	if KindOf(raw) != '"' {
		return "", fmt.Errorf("%.40s is not a string", raw)
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return text, err
}

// TokenIDs reads a list of token ids below vocab; with vocab 0 any that fit.
func TokenIDs(raw json.RawMessage, vocab int) ([]int32, error) {
	raw = bytes.TrimSpace(raw)
	if KindOf(raw) != '[' {
		return nil, fmt.Errorf("%.40s is not a list of token ids", raw)
	}
	rest := bytes.TrimSpace(raw[1 : len(raw)-1])
	out := make([]int32, 0, 1+bytes.Count(rest, []byte(",")))
	for i := 0; len(rest) > 0; i++ {
		var one []byte
		one, rest, _ = bytes.Cut(rest, []byte(","))
		one = bytes.TrimSpace(one)
		id, err := strconv.ParseInt(string(one[:min(len(one), 40)]), 10, 32)
		if err != nil || id < 0 || vocab > 0 && id >= int64(vocab) {
			return nil, fmt.Errorf("element %d: %.40s is not a token id%s", i, one, idRange(vocab))
		}
		out = append(out, int32(id))
	}
	return out, nil
}

func idRange(vocab int) string {
	if vocab == 0 {
		return ""
	}
	return fmt.Sprintf(": 0 to %d are allowed", vocab-1)
}

// seedOf reads a 64-bit number of either sign; nil when none is given. A negative seed is the number with the same 64 bits.
func seedOf(raw json.RawMessage) (*uint64, error) {
	if !Given(raw) {
		return nil, nil
	}
	text := string(raw[:min(len(raw), 40)])
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		seed := uint64(n)
		return &seed, nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, Invalid("seed", "%s is not a 64-bit integer", text)
	}
	return &seed, nil
}

// stopsOf reads the field of stop strings: a string or a list of strings.
func stopsOf(field string, raw json.RawMessage) ([]string, error) {
	if !Given(raw) {
		return nil, nil
	}
	list := []json.RawMessage{raw}
	if KindOf(raw) == '[' {
		var err error
		if list, err = Elements(raw, maxStopStrings); err != nil {
			return nil, Invalid(field, "%v", err)
		}
	}
	out := make([]string, len(list))
	for i, one := range list {
		text, err := StringOf(one)
		if err != nil {
			return nil, Invalid(field, "%v: a string or a list of strings is allowed", err)
		}
		if text == "" || len(text) > maxStopBytes {
			return nil, Invalid(field, "a string of %d bytes is not allowed: 1 to %d", len(text), maxStopBytes)
		}
		out[i] = text
	}
	return out, nil
}
