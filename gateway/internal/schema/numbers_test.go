package schema

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// TestNumbers compares the texts of numbers under random bounds and divisors with exact arithmetic.
func TestNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	number := func() string {
		digits := []string{"0", "1", "9", "10", "99", "100", "123", "1000", "45", "7", "20"}
		text := digits[r.IntN(len(digits))]
		if r.IntN(2) == 0 {
			text += "." + []string{"5", "25", "01", "999", "10"}[r.IntN(5)]
		}
		if r.IntN(2) == 0 {
			text = "-" + text
		}
		return text
	}
	for range 250 {
		schema := `{"type":"number"`
		if r.IntN(2) == 0 {
			schema = `{"type":"integer"`
		}
		if r.IntN(3) > 0 {
			schema += fmt.Sprintf(`,"%s":%s`, []string{"minimum", "exclusiveMinimum"}[r.IntN(2)], number())
		}
		if r.IntN(3) > 0 {
			schema += fmt.Sprintf(`,"%s":%s`, []string{"maximum", "exclusiveMaximum"}[r.IntN(2)], number())
		}
		if r.IntN(3) == 0 {
			schema += `,"multipleOf":` + []string{"2", "3", "0.5", "10", "0.01", "2.5", "7", "100"}[r.IntN(8)]
		}
		if r.IntN(4) == 0 {
			schema += `,"not":{` + []string{`"multipleOf":2`, `"multipleOf":5`, `"enum":[1,9.5,100]`, `"type":"integer"`, `"minimum":50`}[r.IntN(5)] + `}`
		}
		schema += "}"
		compiled, err := Compile(context.Background(), []byte(schema), Options{Strict: true})
		if err != nil {
			if e, ok := err.(*Error); !ok || !strings.HasPrefix(e.Reason, "no value satisfies it") && !e.Relaxed { //nolint:errorlint // Compile gives it as it is
				t.Errorf("%s: %v", schema, err)
			}
			continue
		}
		for range 60 {
			text := number()
			if r.IntN(3) == 0 {
				text = fmt.Sprint(r.IntN(260) - 130)
			}
			value := jsonvalue.ParseDecimal(text)
			integer := value.Integer()
			canonical := value.String()
			if text != canonical && integer { // 1.0 is not written where whole numbers are asked for
				continue
			}
			if text == "-0" {
				continue
			}
			want := len(compiled.Validate([]byte(text))) == 0
			if got := matches(t, compiled.Grammar, text); got != want {
				t.Errorf("%s: %s: grammar %v, valid %v", schema, text, got, want)
			}
		}
	}
}

func TestLeastCommonMultiple(t *testing.T) {
	for _, c := range [][3]string{{"2", "3", "6"}, {"1/2", "1/3", "1"}, {"5/2", "1", "5"}, {"1/100", "3/10", "3/10"}, {"4", "6", "12"}} {
		rat := func(text string) *big.Rat {
			r, _ := new(big.Rat).SetString(text)
			return r
		}
		if got := leastCommonMultiple(rat(c[0]), rat(c[1])); got.Cmp(rat(c[2])) != 0 {
			t.Errorf("%s and %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

// TestCountedDigits holds multiples to the digits that numbers have, where nothing else ends them.
func TestCountedDigits(t *testing.T) {
	for _, divisor := range []string{"7", "13", "60", "0.25"} {
		compiled, err := Compile(context.Background(), []byte(`{"type":"number","multipleOf":`+divisor+`}`), Options{Strict: true})
		if err != nil {
			t.Fatal(err)
		}
		multiple := new(big.Int).Mul(big.NewInt(7*13*60), new(big.Int).Exp(big.NewInt(10), big.NewInt(60), nil)).String() // 64 digits
		if len(multiple) != 64 || !matches(t, compiled.Grammar, multiple) || matches(t, compiled.Grammar, multiple+"0") {
			t.Errorf("multipleOf %s: %d digits", divisor, len(multiple))
		}
	}
}
