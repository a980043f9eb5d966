// Package layout checks what a compiler does not: where things lie, what may import what, and what must not be committed.
package layout

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

const (
	root   = "../.."
	module = "github.com/tinsmith/tinsmith"
)

// files gives every file that is or would be committed, by its path from the root.
func files(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("no git checkout: %v", err)
	}
	var found []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(root, name)); err == nil { // else removed and not yet committed
			found = append(found, name)
		}
	}
	if len(found) < 100 {
		t.Fatalf("git lists %d files only", len(found))
	}
	return found
}

// sources gives the Go files, parsed up to their imports.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	parsed := map[string]*ast.File{}
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		parsed[name] = f
	}
	return parsed
}

func imports(t *testing.T, f *ast.File) []string {
	t.Helper()
	var all []string
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func TestTopLevel(t *testing.T) {
	allowed := []string{"gateway", "plugins", "backends", "cudart", "configs", "docs", "e2e", "packaging", "go.mod", "go.sum", "Dockerfile", "README.md", "Makefile", "LICENSE", "CONTRIBUTING.md"}
	for _, name := range files(t) {
		top, _, _ := strings.Cut(name, "/")
		if !strings.HasPrefix(top, ".") && !slices.Contains(allowed, top) {
			t.Errorf("%s: nothing but %s and dotfiles belongs at the top", name, strings.Join(allowed, ", "))
		}
	}
}

// A name that fits anything says nothing.
func TestNamesSaySomething(t *testing.T) {
	empty := regexp.MustCompile(`^(common|utils?|core|pkg|helpers?|managers?|misc)$`)
	for _, name := range files(t) {
		for folder := range strings.SplitSeq(path.Dir(name), "/") {
			if empty.MatchString(folder) {
				t.Errorf("%s: the folder %q says nothing about what is in it", name, folder)
			}
		}
	}
	for name, f := range sources(t) {
		if empty.MatchString(strings.TrimSuffix(f.Name.Name, "_test")) {
			t.Errorf("%s: the package name %q says nothing", name, f.Name.Name)
		}
	}
}

// C code lives in two leaf packages, so that everything else builds and is tested without a C compiler's help.
func TestCgo(t *testing.T) {
	allowed := []string{"cudart", "backends/internal/tensor/cpu"}
	for name, f := range sources(t) {
		if slices.Contains(imports(t, f), "C") && !slices.Contains(allowed, path.Dir(name)) {
			t.Errorf("%s: import \"C\" belongs in %s only", name, strings.Join(allowed, " and "))
		}
	}
}

// rule is one of depguard's in .golangci.yml.
type rule struct {
	Files []string `yaml:"files"`
	Deny  []struct {
		Package string `yaml:"pkg"`
		Reason  string `yaml:"desc"`
	} `yaml:"deny"`
}

func readRules(t *testing.T) map[string]rule {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]rule `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	return c.Linters.Settings.Depguard.Rules
}

// covers says whether a rule's files pattern, always **/FOLDER/**, covers a file.
func covers(pattern, name string) (bool, error) {
	folder, ok := strings.CutPrefix(pattern, "**")
	if ok {
		folder, ok = strings.CutSuffix(folder, "**")
	}
	if !ok || strings.Contains(folder, "*") || len(folder) < 3 {
		return false, fmt.Errorf("the pattern %q is not **/FOLDER/**", pattern)
	}
	return strings.HasPrefix("/"+name, folder), nil
}

// denies says whether a rule's package, or what is below it, is imported.
func denies(pkg, imported string) bool {
	return imported == pkg || strings.HasPrefix(imported, pkg+"/")
}

// The import rules of .golangci.yml hold, whether or not golangci-lint is installed.
func TestImportRules(t *testing.T) {
	rules := readRules(t)
	if len(rules) < 5 {
		t.Fatalf("read %d rules from .golangci.yml", len(rules))
	}
	parsed := sources(t)
	for id, r := range rules {
		t.Run(id, func(t *testing.T) {
			covered := 0
			for name, f := range parsed {
				for _, pattern := range r.Files {
					hit, err := covers(pattern, name)
					if err != nil {
						t.Fatal(err)
					}
					if !hit {
						continue
					}
					covered++
					for _, imported := range imports(t, f) {
						for _, d := range r.Deny {
							if denies(d.Package, imported) {
								t.Errorf("%s imports %s: %s", name, imported, d.Reason)
							}
						}
					}
				}
			}
			if covered == 0 {
				t.Errorf("the rule covers no file: %v", r.Files)
			}
		})
	}
}

func TestRulesBite(t *testing.T) {
	for _, c := range []struct {
		name, pattern, file, denied, imported string
		want                                  bool
	}{
		{"the gateway uses the engine", "**/gateway/**", "gateway/internal/runs/core.go", module + "/backends", module + "/backends/internal/engine", true},
		{"the gateway uses the contract", "**/gateway/**", "gateway/internal/runs/core.go", module + "/backends", module + "/plugins", false},
		{"another folder", "**/gateway/**", "backends/single/main.go", module + "/backends", module + "/backends/internal/engine", false},
		{"a longer name", "**/plugins/**", "plugins/serve.go", "net/http", "net/httpx", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			hit, err := covers(c.pattern, c.file)
			if err != nil {
				t.Fatal(err)
			}
			if got := hit && denies(c.denied, c.imported); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Of ours, the contract and the GPU layer import only themselves.
func TestLeaves(t *testing.T) {
	for name, f := range sources(t) {
		for _, leaf := range []string{"plugins", "cudart"} {
			if !strings.HasPrefix(name, leaf+"/") {
				continue
			}
			for _, imported := range imports(t, f) {
				if denies(module, imported) && !denies(module+"/"+leaf, imported) {
					t.Errorf("%s imports %s: %s imports nothing of ours", name, imported, leaf)
				}
			}
		}
	}
}

// A program's main says what it is made of; everything else is in packages, where it is tested.
func TestProgramsAreShort(t *testing.T) {
	const most = 40
	count := 0
	for name := range sources(t) {
		if path.Base(name) != "main.go" {
			continue
		}
		count++
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(data, []byte("\n")); lines > most {
			t.Errorf("%s has %d lines, more than %d", name, lines, most)
		}
	}
	if count < 3 {
		t.Errorf("found %d programs", count)
	}
}

func TestSizes(t *testing.T) {
	const (
		most         = 5 << 20
		model        = "configs/models/tiny-chat/model.safetensors"
		mostModel    = 8 << 20
		mostTestdata = 17 << 20
	)
	var testdata int64
	for _, name := range files(t) {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		limit := int64(most)
		if name == model {
			limit = mostModel
		}
		if info.Size() > limit {
			t.Errorf("%s has %d bytes, more than %d", name, info.Size(), limit)
		}
		if strings.Contains("/"+name, "/testdata/") {
			testdata += info.Size()
		}
	}
	if testdata > mostTestdata {
		t.Errorf("the testdata folders have %d bytes together, more than %d", testdata, mostTestdata)
	}
}

// A reader has the repository and nothing else: no text may lead to a file on the machine of whoever wrote it.
func TestTextsStayInside(t *testing.T) {
	// Put together here, so that this file does not name them either.
	outside := regexp.MustCompile(`\.\./sha` + `red\b|(^|[^\w.])/wo` + `rk/|\bdesign\.` + `md\b|(^|[^\w.])/ro` + `ot/`)
	for _, name := range files(t) {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
			continue
		}
		for i, line := range strings.Split(string(data), "\n") {
			if m := outside.FindString(line); m != "" {
				t.Errorf("%s:%d names %q, which is outside the repository", name, i+1, strings.TrimSpace(m))
			}
		}
	}
}

// definesTest tells whether a file defines a test, in the words of its language.
func definesTest(file, name string) bool {
	data, err := os.ReadFile(filepath.Join(root, file))
	return err == nil && regexp.MustCompile(`(?m)^\s*(async def|def|func) `+regexp.QuoteMeta(name)+`\(`).Match(data)
}

// The guides name files that exist, and FILE::TEST only where the file has the test. Every row of docs/problems.md has one.
func TestGuidesNameFiles(t *testing.T) {
	quoted := regexp.MustCompile("`((?:gateway|plugins|backends|configs|e2e|cudart|packaging)/[^` ]+)`")
	for _, guide := range files(t) {
		if folder := path.Dir(guide); !strings.HasSuffix(guide, ".md") || folder != "." && folder != "docs" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, guide))
		if err != nil {
			t.Fatal(err)
		}
		named := quoted.FindAllStringSubmatch(string(data), -1)
		if len(named) == 0 && guide == "CONTRIBUTING.md" {
			t.Errorf("%s names no file", guide)
		}
		for line := range strings.Lines(string(data)) {
			if guide == "docs/problems.md" && strings.HasPrefix(line, "| ") && strings.Contains(line, "](http") && !strings.Contains(line, "::") {
				t.Errorf("%s has no test for %.60q", guide, line)
			}
		}
		for _, m := range named {
			if strings.Contains(m[1], "NAME") || strings.HasSuffix(m[1], "/...") {
				continue
			}
			file, test, ofTest := strings.Cut(m[1], "::")
			if found, err := filepath.Glob(filepath.Join(root, file)); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which does not exist", guide, file)
			} else if ofTest && !definesTest(file, test) {
				t.Errorf("%s names the test %s, which %s does not have", guide, test, file)
			}
		}
	}
}

// docs/api.md has a row for every route, and none for another.
func TestEveryEndpointIsDocumented(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	route := regexp.MustCompile(`\b[gr]\.(GET|POST|PUT|DELETE)\((checkpoint\+?)?(?:"([^"]*)")?`)
	parameter := regexp.MustCompile(`[:*](\w+)`)
	served := map[string]bool{}
	for _, source := range []string{"tinker/service.go", "openai/service.go", "anthropic/service.go", "server/server.go", "page/page.go"} {
		for _, m := range route.FindAllStringSubmatch(read("gateway/internal/"+source), -1) {
			path := m[3]
			if m[2] != "" {
				path = "/training_runs/:run/checkpoints/:kind/:name" + path
			}
			if m[1] == "GET" && path == "/sessions/*session" { // the name may hold slashes, so that the handler looks for what follows it
				path += "/datums"
			}
			path = parameter.ReplaceAllString(path, "{$1}")
			served[m[1]+" "+strings.Replace(path, "{model}", "{id}", 1)] = true
		}
	}
	if len(served) < 60 {
		t.Fatalf("found %d routes", len(served))
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:GET|POST|PUT|DELETE) /[^`]*)` \\|").FindAllStringSubmatch(read("docs/api.md"), -1) {
		documented[m[1]] = true
		if !served[m[1]] {
			t.Errorf("docs/api.md has %s, which is not served", m[1])
		}
	}
	for endpoint := range served {
		if !documented[endpoint] {
			t.Errorf("docs/api.md does not have %s", endpoint)
		}
	}
}

// The README is for somebody who has never heard of this, and everything else is a page of docs that it leads to.
func TestReadme(t *testing.T) {
	const most = 150
	data, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(data, []byte("\n")); lines > most {
		t.Errorf("README.md has %d lines, at most %d are wanted: what is not for everybody belongs into docs", lines, most)
	}
	for _, name := range files(t) {
		if path.Dir(name) == "docs" && !bytes.Contains(data, []byte("]("+name+")")) && strings.HasSuffix(name, ".md") {
			t.Errorf("README.md has no link to %s", name)
		}
	}
}

// Links between documents lead to files that exist.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code := regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]*`")
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(code.ReplaceAll(data, nil), -1) {
			to, _, _ := strings.Cut(string(m[1]), "#")
			if to == "" || strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, path.Dir(name), to)); err != nil {
				t.Errorf("%s has a link to %s, which does not exist", name, to)
			}
		}
	}
}
