// Package redact takes out of texts for callers what only administrators of the server are to know: where things are on its disk, how its database is reached, what its plugins wrote.
package redact

import (
	"cmp"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// What stands for what was taken out.
const (
	aPath     = "(a path)"
	anAddress = "(an address)"
	withheld  = "(withheld)"
)

var (
	// outputBegins is where a plugin's last output begins in the reason why it ended. It may hold anything.
	outputBegins = regexp.MustCompile(`(?s)[;,]? its last output:.*`)
	// storeTrouble is why the store takes nothing. What it is is in the state, where it is in the cause.
	storeTrouble = regexp.MustCompile(`(?s)(the store is [a-z-]+):.*`)
	// absolutePath is at least two names deep, so that "see /healthz" stays; what begins with two slashes is the rest of an address such as tinker://RUN.
	absolutePath = regexp.MustCompile("(^|[\\s\"'`(=\\[{,;:<>|])((?:/[^\\s\"'`()\\[\\]{},;:<>|/]+){2,}/?)")
	webAddress   = regexp.MustCompile(`\b(?:postgres|postgresql|http|https|unix|file)://[^\s"'` + "`" + `<>]+`)
	ipAddress    = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\](?::\d+)?`)
	lookedUp     = regexp.MustCompile(`\b(lookup|dial (?:tcp|unix)|host|hostname|user|database|role) ?([= ])("[^"]*"|[^\s"'` + "`" + `,;:()]+)`)
)

// Secrets are what a Redactor knows by name. Empty ones are left out.
type Secrets struct {
	Paths []string // absolute ones of files and folders; "" and "/" are left out
	Words []string // of the database: host, user, password and name
}

// PostgresWords are the words of a connection URL that are secrets. A URL that cannot be read is one as a whole.
func PostgresWords(text string) []string {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" && u.User == nil {
		return []string{text}
	}
	words := []string{text, u.Hostname(), u.Host, u.User.Username(), strings.Trim(u.Path, "/")}
	if password, ok := u.User.Password(); ok {
		words = append(words, password)
	}
	for _, name := range []string{"host", "user", "password", "dbname"} {
		words = append(words, u.Query().Get(name))
	}
	return words
}

// Redactor takes secrets out of texts. It may be used concurrently; nil knows no names, and finds what has the form of a secret all the same.
type Redactor struct{ paths, words *regexp.Regexp }

// New makes a redactor.
func New(s Secrets) *Redactor {
	var paths []string
	for _, p := range s.Paths {
		if p = filepath.Clean(p); filepath.IsAbs(p) && p != "/" {
			paths = append(paths, p)
			if real, err := filepath.EvalSymlinks(p); err == nil && real != p && real != "/" {
				paths = append(paths, real)
			}
		}
	}
	return &Redactor{paths: anyOf(paths, `(`, `)(/[^\s"'`+"`"+`,;:()<>]*)?(?:$|[^\w.-]|\.(?:\s|$))`), words: anyOf(s.Words, `(^|[^\w./-])(?:`, `)($|[^\w/-])`)}
}

// anyOf matches the texts, longer ones first; nil if there is none.
func anyOf(texts []string, before, after string) *regexp.Regexp {
	var quoted []string
	for _, t := range texts {
		if t != "" {
			quoted = append(quoted, regexp.QuoteMeta(t))
		}
	}
	if quoted == nil {
		return nil
	}
	slices.SortFunc(quoted, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return regexp.MustCompile(before + strings.Join(slices.Compact(quoted), "|") + after)
}

// Request redacts a text about what a caller sent, which may hold what he wrote himself: only paths of the server's own are taken out.
func (r *Redactor) Request(text string) string {
	if r == nil || r.paths == nil {
		return text
	}
	return r.paths.ReplaceAllStringFunc(text, func(found string) string {
		parts := r.paths.FindStringSubmatch(found)
		return aPath + found[len(parts[1])+len(parts[2]):]
	})
}

// Fault redacts a text about a fault of the server's.
func (r *Redactor) Fault(text string) string {
	text = outputBegins.ReplaceAllString(text, "; an administrator is told its last output")
	text = storeTrouble.ReplaceAllString(text, "$1; an administrator is told why")
	text = webAddress.ReplaceAllString(text, anAddress)
	text = r.Request(text)
	text = absolutePath.ReplaceAllString(text, "$1"+aPath)
	text = lookedUp.ReplaceAllString(text, "$1$2"+withheld)
	text = ipAddress.ReplaceAllString(text, anAddress)
	if r != nil && r.words != nil {
		for range 2 { // of two words that share the sign between them, the second is found when the first is gone
			text = r.words.ReplaceAllString(text, "$1"+withheld+"$2")
		}
	}
	return text
}
