package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	partsAtOnce = 4
	maxParts    = 10_000
	maxTag      = 1 << 10
	lfsType     = "application/vnd.git-lfs+json"
)

// action is what the hub wants to be done with an object. A number, or a text of one, under chunk_size in the header means parts, whose addresses are there too, by their numbers.
type action struct {
	Address string         `json:"href"`
	Header  map[string]any `json:"header"`
}

// object is the hub's answer about one large file.
type object struct {
	SHA256 string `json:"oid"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
	Actions *struct {
		Upload *action `json:"upload"`
		Verify *action `json:"verify"`
	} `json:"actions"`
}

// sendLarge uploads the large files that the hub does not have. They are seen by nobody until they are committed.
func (p *upload) sendLarge(ctx context.Context) error {
	var large []*localFile
	for _, f := range p.files {
		if f.large {
			large = append(large, f)
		}
	}
	for files := range slices.Chunk(large, filesAtOnce) {
		objects, err := p.batch(ctx, files)
		if err != nil {
			return err
		}
		for i, f := range files {
			sent := p.report.begin()
			err := repeated(ctx, func() (bool, error) {
				o := objects[i]
				if o.Actions == nil || o.Actions.Upload == nil { // it is there
					return false, nil
				}
				again, err := p.sendFile(ctx, f, o, sent)
				if err == nil || !again {
					return false, err
				}
				// The permissions that its addresses are may have ended.
				sent.set(0)
				fresh, asked := p.batch(ctx, []*localFile{f})
				if asked != nil {
					return false, errors.Join(err, asked)
				}
				objects[i] = fresh[0]
				return true, err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			sent.set(f.size)
		}
	}
	return nil
}

// batch asks how files are to be sent. The answers have the order of the files.
func (p *upload) batch(ctx context.Context, files []*localFile) ([]object, error) {
	type named struct {
		SHA256 string `json:"oid"`
		Size   int64  `json:"size"`
	}
	question := map[string]any{"operation": "upload", "transfers": []string{"basic", "multipart"}, "hash_algo": "sha256", "ref": map[string]string{"name": branch}}
	var list []named
	for _, f := range files {
		list = append(list, named{f.sha256, f.size})
	}
	question["objects"] = list
	var answer struct {
		Transfer string   `json:"transfer"`
		Objects  []object `json:"objects"`
	}
	if err := p.post(ctx, p.endpoint+"/"+p.Repository+".git/info/lfs/objects/batch", map[string]string{"Accept": lfsType, "Content-Type": lfsType}, question, &answer); err != nil {
		return nil, fmt.Errorf("ask how large files are sent: %w", err)
	}
	if t := answer.Transfer; t != "" && t != "basic" && t != "multipart" {
		return nil, fmt.Errorf("the hub wants large files by %.40q: basic and multipart are known", t)
	}
	bySum := map[string]object{}
	for _, o := range answer.Objects {
		bySum[strings.ToLower(o.SHA256)] = o
	}
	objects := make([]object, len(files))
	for i, f := range files {
		o, ok := bySum[f.sha256]
		if !ok {
			return nil, fmt.Errorf("the hub does not say how %s is sent", f.name)
		}
		if o.Error != nil {
			return nil, fmt.Errorf("the hub does not take %s: %.*s", f.name, maxSaid, o.Error.Message)
		}
		objects[i] = o
	}
	return objects, nil
}

// sendFile sends one file as the hub wants it. again tells whether asking the hub anew may help.
func (p *upload) sendFile(ctx context.Context, f *localFile, o object, sent *sending) (again bool, err error) {
	in, err := os.Open(f.path)
	if err != nil {
		return false, err
	}
	defer in.Close()
	address, err := p.allowed(o.Actions.Upload.Address)
	if err != nil {
		return false, err
	}
	size, addresses, err := p.parts(f, o.Actions.Upload.Header)
	if err != nil {
		return false, err
	}
	if addresses == nil {
		if _, err := p.put(ctx, address, in, 0, f.size, sent); err != nil {
			return passing(err) || expired(err), err
		}
	} else if again, err := p.sendParts(ctx, f, in, address, size, addresses, sent); err != nil {
		return again, err
	}
	if verify := o.Actions.Verify; verify != nil {
		where, err := p.allowed(verify.Address)
		if err != nil {
			return false, err
		}
		if err := p.post(ctx, where, nil, map[string]any{"oid": f.sha256, "size": f.size}, nil); err != nil {
			return false, fmt.Errorf("the hub does not find it whole: %w", err)
		}
	}
	return false, nil
}

// expired tells whether a refusal may be that of an address whose time has passed.
func expired(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == http.StatusForbidden
}

// allowed checks an address that the hub gives for its own. A hub behind another address than its usual one may give that.
func (p *upload) allowed(address string) (string, error) {
	if rest, ok := strings.CutPrefix(address, defaultEndpoint+"/"); ok {
		address = p.endpoint + "/" + rest
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || strings.HasPrefix(p.endpoint, "https://")) {
		return "", errors.New("the hub gives an address for a file that is none, or one without TLS")
	}
	return address, nil
}

// parts reads the size of parts and their addresses in order; no addresses for a file that is sent as a whole.
func (p *upload) parts(f *localFile, header map[string]any) (size int64, addresses []string, err error) {
	given, ok := header["chunk_size"]
	if !ok {
		return 0, nil, nil
	}
	size, err = strconv.ParseInt(fmt.Sprint(given), 10, 64)
	if n, isNumber := given.(float64); isNumber {
		size, err = int64(n), nil
	}
	if err != nil || size < 1 {
		return 0, nil, fmt.Errorf("the hub wants parts of %.40q bytes", fmt.Sprint(given))
	}
	count := (f.size-1)/size + 1
	if count > maxParts {
		return 0, nil, fmt.Errorf("the hub wants %d parts, more than %d", count, maxParts)
	}
	byNumber := map[int64]string{}
	for number, address := range header {
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			byNumber[n], _ = address.(string)
		}
	}
	addresses = make([]string, count)
	for i := range addresses {
		if addresses[i], err = p.allowed(byNumber[int64(i)+1]); err != nil {
			return 0, nil, err
		}
	}
	if int64(len(byNumber)) != count {
		return 0, nil, fmt.Errorf("the hub gives addresses for %d parts of %d", len(byNumber), count)
	}
	return size, addresses, nil
}

// sendParts sends a file in parts, some at a time, each again where it fails, and has the hub put them together.
func (p *upload) sendParts(ctx context.Context, f *localFile, in *os.File, whole string, size int64, addresses []string, sent *sending) (again bool, err error) {
	type part struct {
		Number int    `json:"partNumber"`
		Tag    string `json:"etag"`
	}
	parts := make([]part, len(addresses))
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	for i, address := range addresses {
		group.Go(func() error {
			offset := int64(i) * size
			return repeated(inGroup, func() (bool, error) {
				tag, err := p.put(inGroup, address, in, offset, min(size, f.size-offset), sent)
				if err == nil && (tag == "" || len(tag) > maxTag) {
					return false, fmt.Errorf("the hub gives no usable ETag of part %d", i+1)
				}
				parts[i] = part{i + 1, tag}
				return passing(err), err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return expired(err), err
	}
	body, err := json.Marshal(map[string]any{"oid": f.sha256, "parts": parts})
	if err != nil {
		return false, err
	}
	// The address is a permission itself, so it has no token.
	err = repeated(ctx, func() (bool, error) {
		res, err := send(ctx, uploader, request{
			method: http.MethodPost, url: whole, header: map[string]string{"Accept": lfsType, "Content-Type": lfsType}, body: func() io.Reader { return bytes.NewReader(body) }, length: int64(len(body)),
		})
		if err != nil {
			return passing(err), err
		}
		return false, res.Body.Close()
	})
	return expired(err), err
}

// put sends a part of a file, or the whole, without the token: it goes to wherever the hub keeps files. The tag is the storage's name for what it has received.
func (p *upload) put(ctx context.Context, address string, in *os.File, offset, length int64, sent *sending) (tag string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(stalledAfter, func() { cancel(fmt.Errorf("no data was taken for %s", stalledAfter)) })
	defer watchdog.Stop()
	var counted []*countedReader
	var mu sync.Mutex
	body := func() io.Reader {
		mu.Lock()
		defer mu.Unlock()
		r := &countedReader{in: io.NewSectionReader(in, offset, length), sent: sent, read: func(whole bool) {
			if whole { // what remains is the storage's work
				watchdog.Stop()
				return
			}
			watchdog.Reset(stalledAfter)
		}, left: length}
		for _, earlier := range counted {
			earlier.undo()
		}
		counted = append(counted, r)
		return r
	}
	res, err := send(ctx, uploader, request{method: http.MethodPut, url: address, body: body, length: length})
	if err != nil {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range counted {
			r.undo()
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", err
	}
	return res.Header.Get("ETag"), res.Body.Close()
}

// countedReader tells how much of a part is on its way.
type countedReader struct {
	in   io.Reader
	sent *sending
	read func(whole bool)

	mu     sync.Mutex
	left   int64
	n      int64
	undone bool
}

func (r *countedReader) Read(b []byte) (int, error) {
	n, err := r.in.Read(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.undone && n > 0 {
		r.n += int64(n)
		r.left -= int64(n)
		r.sent.add(int64(n))
		r.read(r.left <= 0)
	}
	return n, err
}

// undo takes back what was counted, of a body that is sent again; what is still read of it no longer counts.
func (r *countedReader) undo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.undone {
		r.undone = true
		r.sent.add(-r.n)
	}
}

// counter adds up what is sent, from several goroutines, for one Progress.
type counter struct {
	progress Progress
	total    int64

	mu   sync.Mutex
	done int64
}

func (c *counter) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
}

// sending is what of one file is sent.
type sending struct {
	of *counter
	mu sync.Mutex
	n  int64
}

func (c *counter) begin() *sending { return &sending{of: c} }

func (s *sending) add(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n += n
	s.of.add(n)
}

func (s *sending) set(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of.add(n - s.n)
	s.n = n
}
