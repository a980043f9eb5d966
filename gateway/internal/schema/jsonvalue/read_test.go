package jsonvalue

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

var limits = Limits{Bytes: 1 << 16, Depth: 64}

func TestReadKeepsOrder(t *testing.T) {
	v, err := Read([]byte(` {"b":[1.50,"\ud83d\ude00\n"],"a":{"":null},"c":-0e1} `), limits)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, m := range v.Members {
		keys = append(keys, m.Key)
	}
	if !reflect.DeepEqual(keys, []string{"b", "a", "c"}) || v.Get("b").Items[0].Text != "1.50" || v.Get("b").Items[1].Text != "😀\n" || v.Get("c").Text != "-0e1" {
		t.Errorf("read as %+v", v)
	}
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``: "ends where", `{"a":1,"a":2}`: "twice", `[1,]`: "want a JSON value", `{"a"}`: "want ':'", `{a:1}`: "key in quotes", `01`: "after the value",
		`1.`: "digit", `NaN`: "want a JSON value",
		`"a`: "inside a string", "\"\x01\"": "control", `"\x"`: "escape", `[1 2]`: "want ','", `{"a":1 "b":2}`: "want ','", `nul`: "want a JSON value",
		`-`: "digit", `1e`: "exponent",
		strings.Repeat("[", 65): "nesting > 64", strings.Repeat(" ", 1<<16) + "1": "bytes",
	} {
		if _, err := Read([]byte(text), limits); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
}

func TestDecimal(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"1", "1.0", 0}, {"1e2", "100", 0}, {"-0", "0.00", 0}, {"0.1", "0.01", 1}, {"-2", "1", -1}, {"-2", "-3", 1}, {"9007199254740993",
			"9007199254740992", 1}, {"1e999999999999", "1e99", 1}, {"1e-999999999999", "0", 1},
		{"123.456", "1.23456e2", 0},
	} {
		if got := ParseDecimal(c.a).Compare(ParseDecimal(c.b)); got != c.want {
			t.Errorf("%s against %s: %d", c.a, c.b, got)
		}
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"10", "5", true}, {"10.5", "0.5", true}, {"0.0075", "0.0001", true}, {"0.00751", "0.0001", false}, {"1e308", "0.123456789", false}, {"0", "7",
			true}, {"1e400", "1e399", true}, {"4.5", "1.5", true}, {"35", "1.5", false}, {"1", "1e-300", true},
	} {
		if got := ParseDecimal(c.a).MultipleOf(ParseDecimal(c.b)); got != c.want {
			t.Errorf("%s of %s: %v", c.a, c.b, got)
		}
	}
	for text, want := range map[string]string{"1.50": "1.5", "-0": "0", "1e3": "1000", "0.00100": "0.001", "1e100": "1e100", "12e99": "1.2e100",
		"1e-80": "1e-80"} {
		if got := ParseDecimal(text).String(); got != want {
			t.Errorf("%s is written as %s", text, got)
		}
	}
}

// FuzzRead compares with encoding/json, which takes the same texts but for keys that stand twice and for what is no UTF-8.
func FuzzRead(f *testing.F) {
	for _, text := range []string{`{"a":[1,2.5e-3,"x\u00e9"],"b":{}}`, `[[],{},null,true,false]`, `"\ud800"`, `-0.0E+1`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := Read(text, Limits{Bytes: 1 << 16, Depth: 64, RepeatKeys: true})
		var want any
		decoder := json.NewDecoder(strings.NewReader(string(text)))
		decoder.UseNumber()
		if jsonErr := json.Unmarshal(text, &want); (err == nil) != (jsonErr == nil) {
			if err != nil && strings.Contains(err.Error(), "too large") || !utf8.Valid(text) || jsonErr != nil && strings.Contains(jsonErr.Error(),
				"cannot unmarshal number") {
				return
			}
			t.Fatalf("%q: %v, encoding/json: %v", text, err, jsonErr)
		}
		if err != nil {
			return
		}
		again, err := Read([]byte(Canonical(v)), Limits{Bytes: 1 << 20, Depth: 64})
		if err != nil || !Equal(v, again) {
			t.Fatalf("%q is %q, which is another value: %v", text, Canonical(v), err)
		}
	})
}
