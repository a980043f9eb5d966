package hub

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // git's object ids are SHA-1
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is pushed.
const (
	sampleBytes    = 512      // of each file, by which a hub decides how it is kept
	maxCommitBytes = 64 << 20 // of all files that are in a commit themselves
	maxCard        = 1 << 20
	filesAtOnce    = 256 // in one question, as Hugging Face's own library asks
	branch         = "main"
	cardName       = "README.md"
)

// Upload is a folder that becomes the newest commit of a repository of models.
type Upload struct {
	Repository string // org/name
	Private    bool   // the repository must be, and is made so
	Dir        string // of whose regular files every one is pushed; it has no folders
	Summary    string // of the commit
	// Displaced tells of a file that the repository has, and that Dir has not, whether it must not stay beside what is pushed. Without Replace such a file is an error, with it the commit deletes it.
	Displaced func(name string) bool
	Replace   bool
	// CardMark is in every README.md of ours. One without it is somebody's own, and stays unless Replace is set.
	CardMark string
}

// Uploaded is what became of an upload.
type Uploaded struct {
	Commit   string
	Address  string // of the commit, for people
	Same     bool   // everything was there already, and nothing was committed
	KeptCard bool   // the repository's README.md is somebody's own and was left
}

// upload is an Upload that is being done.
type upload struct {
	Upload
	endpoint string
	report   *counter
	files    []*localFile
}

// localFile is one file that is pushed.
type localFile struct {
	name, path string
	size       int64
	sha256     string
	sha1       string // as git names it
	sample     []byte
	large      bool // kept by LFS
}

// fileName is what a file may be called in a repository: nothing that a shell, a URL or a file system reads as something else.
var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+ -]{0,199}$`)

// Push makes the repository if it is not there, uploads what the hub does not have yet, and commits it all at once: until then nobody sees anything. A push that was cut off is called again; files that had come
// to their end are not sent twice. Nothing is committed over what somebody else has committed meanwhile.
func Push(ctx context.Context, u Upload, progress Progress) (Uploaded, error) {
	fail := func(err error) (Uploaded, error) { return Uploaded{}, fmt.Errorf("push to %s: %w", u.Repository, err) }
	if !Repository(u.Repository) || !strings.Contains(u.Repository, "/") {
		return Uploaded{}, fmt.Errorf("push: %.200q is not org/name", u.Repository)
	}
	endpoint, err := endpointOf()
	if err != nil {
		return Uploaded{}, err
	}
	if token() == "" {
		return fail(errors.New("it needs a token that may write: set HF_TOKEN, or log in with Hugging Face's own tool, which keeps it in a file"))
	}
	p := &upload{Upload: u, endpoint: endpoint}
	if p.files, err = readFolder(ctx, u.Dir); err != nil {
		return fail(err)
	}
	if err := p.checkCard(ctx); err != nil {
		return fail(err)
	}
	if err := p.create(ctx); err != nil {
		return fail(err)
	}
	state, err := p.state(ctx)
	if err != nil {
		return fail(err)
	}
	if u.Private && !state.Private {
		return fail(errors.New("the repository is not private: make it private, or choose another name; nothing was pushed"))
	}
	deleted, kept, err := p.compare(ctx, state)
	if err != nil {
		return fail(err)
	}
	if len(p.files)+len(deleted) == 0 {
		return Uploaded{Commit: state.Commit, Address: p.address(state.Commit), Same: true, KeptCard: kept}, nil
	}
	if err := p.sort(ctx); err != nil {
		return fail(err)
	}
	var total int64
	for _, f := range p.files {
		total += f.size
	}
	p.report = &counter{total: total, progress: progress}
	if err := p.sendLarge(ctx); err != nil {
		return fail(err)
	}
	commit, err := p.commit(ctx, state.Commit, deleted)
	if err != nil {
		return fail(err)
	}
	return Uploaded{Commit: commit, Address: p.address(commit), KeptCard: kept}, nil
}

func (p *upload) address(commit string) string {
	return p.endpoint + "/" + p.Repository + "/commit/" + commit
}

func (p *upload) api(what string) string {
	return p.endpoint + "/api/models/" + p.Repository + "/" + what
}

// readFolder describes the files of a folder, with the sums by which a hub knows them.
func readFolder(ctx context.Context, dir string) ([]*localFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 || len(entries) > maxFiles {
		return nil, fmt.Errorf("%d files: there must be 1 to %d", len(entries), maxFiles)
	}
	var files []*localFile
	for _, e := range entries {
		if !fileName.MatchString(e.Name()) {
			return nil, fmt.Errorf("%.200q cannot be the name of a file in a repository", e.Name())
		}
		if !e.Type().IsRegular() {
			return nil, fmt.Errorf("%s is not a regular file", e.Name())
		}
		f, err := readLocal(ctx, filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func readLocal(ctx context.Context, path string) (*localFile, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	f := &localFile{name: filepath.Base(path), path: path, size: info.Size()}
	content, git := sha256.New(), sha1.New() //nolint:gosec // git's object ids are SHA-1
	_, _ = io.WriteString(git, "blob "+strconv.FormatInt(f.size, 10)+"\x00")
	n, err := io.Copy(io.MultiWriter(content, git), contextReader{ctx, in})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	if n != f.size {
		return nil, fmt.Errorf("%s changes while it is read", f.name)
	}
	f.sha256, f.sha1 = hex.EncodeToString(content.Sum(nil)), hex.EncodeToString(git.Sum(nil))
	f.sample = make([]byte, min(f.size, sampleBytes))
	if _, err := in.ReadAt(f.sample, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return f, nil
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// post sends a question in JSON that changes nothing, or nothing twice, and decodes the answer.
func (p *upload) post(ctx context.Context, address string, header map[string]string, question, into any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	all := map[string]string{"Content-Type": "application/json"}
	for name, value := range header {
		all[name] = value
	}
	return repeated(ctx, func() (bool, error) {
		res, err := send(ctx, client, request{method: http.MethodPost, url: address, header: all, body: func() io.Reader { return bytes.NewReader(body) }, length: int64(len(body)), token: true})
		if err != nil {
			return passing(err), err
		}
		if into == nil {
			return false, res.Body.Close()
		}
		return true, readJSON(res, into)
	})
}

// checkCard has the hub look at the head of the card, which it would refuse only with the commit, after everything is sent. A hub that does not do that is asked in vain.
func (p *upload) checkCard(ctx context.Context) error {
	for _, f := range p.files {
		if f.name != cardName {
			continue
		}
		if f.size > maxCard {
			return fmt.Errorf("%s has %d bytes, more than %d", f.name, f.size, maxCard)
		}
		content, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		var answer struct {
			Errors []struct {
				Message string `json:"message"`
			} `json:"errors"`
		}
		err = p.post(ctx, p.endpoint+"/api/validate-yaml", nil, map[string]string{"content": string(content), "repoType": "model"}, &answer)
		var status *statusError
		switch {
		case errors.As(err, &status) && status.code == http.StatusNotFound:
		case err == nil && len(answer.Errors) > 0:
			return fmt.Errorf("the hub does not take the head of %s: %.*s", f.name, maxSaid, answer.Errors[0].Message)
		case errors.As(err, &status) && status.code == http.StatusBadRequest:
			return fmt.Errorf("the hub does not take the head of %s: %w", f.name, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// create makes the repository. That it is there already, or that the token may write to this one but make none, shows in what comes next.
func (p *upload) create(ctx context.Context) error {
	organization, name, _ := strings.Cut(p.Repository, "/")
	question := map[string]string{"name": name, "organization": organization, "type": "model"}
	if p.Private {
		question["visibility"] = "private"
	}
	err := p.post(ctx, p.endpoint+"/api/repos/create", nil, question, nil)
	var status *statusError
	if !errors.As(err, &status) {
		return err
	}
	switch status.code {
	case http.StatusConflict:
		return nil
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden:
		if _, there := p.state(ctx); there == nil {
			return nil
		}
	}
	return fmt.Errorf("make the repository: %w", err)
}

func (p *upload) state(ctx context.Context) (revisionState, error) {
	var state revisionState
	err := repeated(ctx, func() (again bool, err error) {
		state, err = askRevision(ctx, p.endpoint, p.Repository, branch)
		return passing(err), err
	})
	return state, err
}

// compare takes out of what is pushed what the repository has already, and finds what must go from there.
func (p *upload) compare(ctx context.Context, state revisionState) (deleted []string, keptCard bool, err error) {
	there := map[string]file{}
	for _, f := range state.Files {
		there[f.Name] = f
	}
	left := p.files[:0:0]
	own := map[string]bool{}
	for _, f := range p.files {
		own[f.name] = true
		theirs, known := there[f.name]
		if known && f.name == cardName && !p.Replace {
			ours, err := p.ownCard(ctx, state.Commit)
			if err != nil {
				return nil, false, err
			}
			if !ours {
				keptCard = true
				continue
			}
		}
		if known && theirs.Size == f.size && (theirs.LFS != nil && theirs.digest() == f.sha256 || theirs.LFS == nil && theirs.digest() == f.sha1) {
			continue
		}
		left = append(left, f)
	}
	p.files = left
	for _, f := range state.Files {
		if !own[f.Name] && p.Displaced != nil && p.Displaced(f.Name) {
			deleted = append(deleted, f.Name)
		}
	}
	slices.Sort(deleted)
	if len(deleted) > 0 && !p.Replace {
		return nil, false, fmt.Errorf("the repository has %.200q (%d such files), which would stay beside what is pushed and be loaded with it or instead of it: --replace deletes it in the same commit; or choose another name", deleted[0], len(deleted))
	}
	return deleted, keptCard, nil
}

// ownCard tells whether the repository's card was written by an earlier push.
func (p *upload) ownCard(ctx context.Context, commit string) (ours bool, err error) {
	err = repeated(ctx, func() (bool, error) {
		res, err := get(ctx, fmt.Sprintf("%s/%s/resolve/%s/%s", p.endpoint, p.Repository, commit, cardName), 0)
		if err != nil {
			return passing(err), err
		}
		defer res.Body.Close()
		card, err := io.ReadAll(io.LimitReader(res.Body, maxCard))
		ours = bytes.Contains(card, []byte(p.CardMark))
		return true, err
	})
	return ours, err
}

// sort asks the hub which files are kept by LFS and which in the commit itself.
func (p *upload) sort(ctx context.Context) error {
	var inside int64
	for files := range slices.Chunk(p.files, filesAtOnce) {
		type described struct {
			Path   string `json:"path"`
			Sample string `json:"sample"`
			Size   int64  `json:"size"`
		}
		var question struct {
			Files []described `json:"files"`
		}
		for _, f := range files {
			question.Files = append(question.Files, described{f.name, base64.StdEncoding.EncodeToString(f.sample), f.size})
		}
		var answer struct {
			Files []struct {
				Path   string `json:"path"`
				Mode   string `json:"uploadMode"`
				Ignore bool   `json:"shouldIgnore"`
			} `json:"files"`
		}
		if err := p.post(ctx, p.api("preupload/"+branch), nil, question, &answer); err != nil {
			return err
		}
		modes := map[string]string{}
		for _, f := range answer.Files {
			if f.Ignore {
				return fmt.Errorf("the repository's .gitignore leaves out %.200q: change it, or choose another name", f.Path)
			}
			modes[f.Path] = f.Mode
		}
		for _, f := range files {
			mode := modes[f.name]
			if mode != "lfs" && mode != "regular" {
				return fmt.Errorf("the hub says of %s that it is kept as %.40q: lfs or regular was expected", f.name, mode)
			}
			f.large = mode == "lfs" && f.size > 0 // an empty file cannot be kept by LFS
			if !f.large {
				inside += f.size
			}
		}
	}
	if inside > maxCommitBytes {
		return fmt.Errorf("the hub would have %d bytes in the commit itself, more than %d", inside, maxCommitBytes)
	}
	return nil
}

// commit makes the commit on top of parent, and gives its name. It is made once: where an answer is lost, the hub is asked what it has.
func (p *upload) commit(ctx context.Context, parent string, deleted []string) (string, error) {
	body, err := p.operations(parent, deleted)
	if err != nil {
		return "", err
	}
	var answer struct {
		Commit string `json:"commitOid"`
	}
	err = repeated(ctx, func() (bool, error) {
		res, err := send(ctx, uploader, request{
			method: http.MethodPost, url: p.api("commit/" + branch), header: map[string]string{"Content-Type": "application/x-ndjson"},
			body: func() io.Reader { return bytes.NewReader(body) }, length: int64(len(body)), token: true,
		})
		if err == nil {
			err = readJSON(res, &answer)
		}
		if err == nil || !passing(err) {
			return false, err
		}
		state, asked := p.state(ctx)
		switch {
		case asked != nil || state.Commit == parent:
			return true, err
		case p.holds(state, deleted):
			answer.Commit = state.Commit
			return false, nil
		}
		return false, fmt.Errorf("%w; and something else was committed meanwhile: push again", err)
	})
	var status *statusError
	if errors.As(err, &status) && (status.code == http.StatusConflict || status.code == http.StatusPreconditionFailed) {
		return "", fmt.Errorf("something else was committed meanwhile: push again: %w", err)
	}
	if err == nil && !commitHash.MatchString(answer.Commit) {
		return "", errors.New("the hub does not say which commit it has made")
	}
	if err == nil {
		for _, f := range p.files {
			if !f.large {
				p.report.add(f.size)
			}
		}
	}
	return answer.Commit, err
}

// holds tells whether a revision has everything that was to be committed.
func (p *upload) holds(state revisionState, deleted []string) bool {
	sums := map[string]string{}
	for i := range state.Files {
		sums[state.Files[i].Name] = state.Files[i].digest()
	}
	for _, f := range p.files {
		if got := sums[f.name]; got != f.sha256 && got != f.sha1 {
			return false
		}
	}
	return !slices.ContainsFunc(deleted, func(name string) bool { _, there := sums[name]; return there })
}

// operations is the body of a commit: lines of JSON, the head first.
func (p *upload) operations(parent string, deleted []string) ([]byte, error) {
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	type line struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	}
	head := map[string]string{"summary": p.Summary, "description": ""}
	if parent != "" {
		head["parentCommit"] = parent
	}
	all := []line{{"header", head}}
	for _, f := range p.files {
		if f.large {
			all = append(all, line{"lfsFile", map[string]any{"path": f.name, "algo": "sha256", "oid": f.sha256, "size": f.size}})
			continue
		}
		content, err := os.ReadFile(f.path)
		if err != nil {
			return nil, err
		}
		if int64(len(content)) != f.size {
			return nil, fmt.Errorf("%s has changed meanwhile", f.name)
		}
		all = append(all, line{"file", map[string]string{"path": f.name, "encoding": "base64", "content": base64.StdEncoding.EncodeToString(content)}})
	}
	for _, name := range deleted {
		all = append(all, line{"deletedFile", map[string]string{"path": name}})
	}
	for _, l := range all {
		if err := lines.Encode(l); err != nil {
			return nil, err
		}
	}
	return body.Bytes(), nil
}
