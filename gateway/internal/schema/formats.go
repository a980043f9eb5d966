package schema

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/ecma"
)

// Pieces of the formats' languages, as the RFCs' grammars have them. What is in the place of ULETTER is what the international forms have more.
const (
	formatDate = `(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))` +
		`|(?:(?:[02468][048]|[13579][26])00|\d{2}(?:0[48]|[2468][048]|[13579][26]))-02-29)`
	formatTime = `(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,64})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)`

	formatClockDuration = `T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)`
	formatDuration      = `P(?:\d+W|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:` + formatClockDuration + `)?|` + formatClockDuration + `)`

	formatByte = `(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
	formatIPv4 = formatByte + `(?:\.` + formatByte + `){3}`
	formatH16  = `[0-9A-Fa-f]{1,4}`
	formatLS32 = `(?:` + formatH16 + `:` + formatH16 + `|` + formatIPv4 + `)`
	formatIPv6 = `(?:(?:` + formatH16 + `:){6}` + formatLS32 +
		`|::(?:` + formatH16 + `:){5}` + formatLS32 +
		`|(?:` + formatH16 + `)?::(?:` + formatH16 + `:){4}` + formatLS32 +
		`|(?:(?:` + formatH16 + `:){0,1}` + formatH16 + `)?::(?:` + formatH16 + `:){3}` + formatLS32 +
		`|(?:(?:` + formatH16 + `:){0,2}` + formatH16 + `)?::(?:` + formatH16 + `:){2}` + formatLS32 +
		`|(?:(?:` + formatH16 + `:){0,3}` + formatH16 + `)?::` + formatH16 + `:` + formatLS32 +
		`|(?:(?:` + formatH16 + `:){0,4}` + formatH16 + `)?::` + formatLS32 +
		`|(?:(?:` + formatH16 + `:){0,5}` + formatH16 + `)?::` + formatH16 +
		`|(?:(?:` + formatH16 + `:){0,6}` + formatH16 + `)?::)`

	// A label has no hyphen at its ends, and none in its third and fourth place together, which stands for an encoding that no regular language checks.
	formatLabel = `(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]?[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])` +
		`(?:[A-Za-z0-9-]{0,58}[A-Za-z0-9])?|[A-Za-z0-9][A-Za-z0-9-]{2}[A-Za-z0-9](?:[A-Za-z0-9-]{0,58}[A-Za-z0-9])?)`
	formatLooseLabel = `[A-Za-z0-9ULETTER](?:[A-Za-z0-9ULETTER-]{0,61}[A-Za-z0-9ULETTER])?`
	formatAtom       = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~ULETTER-]+"
	formatEmail      = `(?:` + formatAtom + `(?:\.` + formatAtom + `)*|"(?:[ !#-\[\]-~ULETTER]|\\[ -~])*")@(?:` +
		formatLooseLabel + `(?:\.` + formatLooseLabel + `)*|\[(?:` + formatIPv4 + `|IPv6:` + formatIPv6 + `)\])`

	formatPercent  = `%[0-9A-Fa-f]{2}`
	formatPlain    = `A-Za-z0-9\-._~!$&'()*+,;=ULETTER`
	formatPathChar = `(?:[` + formatPlain + `:@]|` + formatPercent + `)`
	formatHost     = `(?:\[(?:` + formatIPv6 + `|[vV][0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+)\]|(?:[` + formatPlain + `]|` + formatPercent + `)*)`
	formatHier     = `//(?:(?:[` + formatPlain + `:]|` + formatPercent + `)*@)?` + formatHost + `(?::\d*)?(?:/` + formatPathChar + `*)*` +
		`|/(?:` + formatPathChar + `+(?:/` + formatPathChar + `*)*)?`
	formatRootless  = formatPathChar + `+(?:/` + formatPathChar + `*)*`
	formatTail      = `(?:\?(?:` + formatPathChar + `|[/?UPRIVATE])*)?(?:#(?:` + formatPathChar + `|[/?])*)?`
	formatURI       = `[A-Za-z][A-Za-z0-9+\-.]*:(?:` + formatHier + `|` + formatRootless + `|)` + formatTail
	formatNoColon   = `(?:[` + formatPlain + `@]|` + formatPercent + `)+(?:/` + formatPathChar + `*)*`
	formatReference = `(?:` + formatURI + `|(?:` + formatHier + `|` + formatNoColon + `|)` + formatTail + `)`

	formatVariable = `(?:[A-Za-z0-9_]|` + formatPercent + `)(?:\.?(?:[A-Za-z0-9_]|` + formatPercent + `))*(?::[1-9]\d{0,3}|\*)?`
	formatTemplate = "(?:[^\\x00-\\x20\"%<>\\\\^`{|}\\x7f]|" + formatPercent + `|\{[+#./;?&=,!@|]?` + formatVariable + `(?:,` + formatVariable + `)*\})*`

	formatPointer = `(?:/(?:[^~/]|~[01])*)*`
)

// International letters, as RFC 3987 has them.
const (
	internationalLetters = `\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}\u{40000}-\u{4fffd}` +
		`\u{50000}-\u{5fffd}\u{60000}-\u{6fffd}\u{70000}-\u{7fffd}\u{80000}-\u{8fffd}\u{90000}-\u{9fffd}\u{a0000}-\u{afffd}\u{b0000}-\u{bfffd}` +
		`\u{c0000}-\u{cfffd}\u{d0000}-\u{dfffd}\u{e1000}-\u{efffd}`
	privateCharacters = `\u{e000}-\u{f8ff}\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}`
)

// plain leaves the international letters out, international puts them in.
func plain(source string) string {
	return strings.NewReplacer("ULETTER", "", "UPRIVATE", "").Replace(source)
}

func international(source string) string {
	return strings.NewReplacer("ULETTER", internationalLetters, "UPRIVATE", privateCharacters).Replace(source)
}

// format is the language of one format.
type format struct {
	source    string
	maxLength int // -1 is none
}

// formats are those that are enforced. Others are annotations.
var formats = map[string]format{
	"date":                  {formatDate, -1},
	"time":                  {formatTime, -1},
	"date-time":             {formatDate + `[Tt]` + formatTime, -1},
	"duration":              {formatDuration, -1},
	"email":                 {plain(formatEmail), -1},
	"idn-email":             {strings.ReplaceAll(formatEmail, "ULETTER", `\u{80}-\u{10ffff}`), -1},
	"hostname":              {formatLabel + `(?:\.` + formatLabel + `)*`, 253},
	"ipv4":                  {formatIPv4, -1},
	"ipv6":                  {formatIPv6, -1},
	"uuid":                  {`[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}`, -1},
	"uri":                   {plain(formatURI), -1},
	"uri-reference":         {plain(formatReference), -1},
	"iri":                   {international(formatURI), -1},
	"iri-reference":         {international(formatReference), -1},
	"uri-template":          {formatTemplate, -1},
	"json-pointer":          {formatPointer, -1},
	"relative-json-pointer": {`(?:0|[1-9]\d*)(?:#|` + formatPointer + `)`, -1},
}

var formatPatterns = sync.OnceValue(func() map[string]*ecma.Pattern {
	patterns := make(map[string]*ecma.Pattern, len(formats))
	for name, f := range formats {
		pattern, err := ecma.Parse(`^(?:` + f.source + `)$`)
		if err != nil {
			panic("format " + name + ": " + err.Error()) // a constant is wrong
		}
		patterns[name] = pattern
	}
	return patterns
})

// formatPattern is the pattern of a format, nil for those that are not enforced.
func formatPattern(name string) *ecma.Pattern { return formatPatterns()[name] }

func validRegex(text string) bool {
	_, err := ecma.Parse(text)
	return err == nil
}

// plausibleHostname checks the form of an international host name: its labels, not which characters may stand beside which.
func plausibleHostname(text string) bool {
	if utf8.RuneCountInString(text) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.NewReplacer("。", ".", "．", ".", "｡", ".").Replace(text), ".") {
		if n := utf8.RuneCountInString(label); n == 0 || n > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
		for _, r := range label {
			if r < utf8.RuneSelf && !(r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') || unicode.IsSpace(r) || unicode.IsControl(r) {
				return false
			}
		}
	}
	return true
}
