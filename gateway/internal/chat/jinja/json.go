package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxJSONDepth bounds the nesting of decoded JSON; Python's decoder stops near 1000.
const maxJSONDepth = 500

// FromJSON decodes one JSON document as Python's json.loads does: objects keep the order of their keys (a repeated key keeps its first place and its
// last value), 1 is an int of any size up to 4300 digits and 1.0 or 1e5 a float. Half surrogates, which Go strings cannot hold, become U+FFFD.
func FromJSON(data []byte) (Value, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("decode JSON: not valid UTF-8")
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, fmt.Errorf("decode JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("decode JSON: more than one document")
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (Value, error) {
	t, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxJSONDepth)
	}
	switch t := t.(type) {
	case nil:
		return None, nil
	case bool:
		return Bool(t), nil
	case string:
		return Str(t), nil
	case json.Number:
		return jsonNumber(string(t))
	case json.Delim:
		if t == '[' {
			out := &List{}
			for d.More() {
				item, err := decodeValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				out.Items = append(out.Items, item)
			}
			_, err := d.Token()
			return out, err
		}
		out := &Dict{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			out.Set(key.(string), value)
		}
		_, err := d.Token()
		return out, err
	}
	return nil, fmt.Errorf("unexpected %v", t)
}

func jsonNumber(s string) (Value, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			return nil, err
		}
		return Float(f), nil
	}
	if len(s) > 4300 {
		return nil, fmt.Errorf("integer of %d digits; at most 4300 are allowed", len(s))
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return Int(i), nil
	}
	i, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("invalid number %s", s)
	}
	return &BigInt{i}, nil
}
