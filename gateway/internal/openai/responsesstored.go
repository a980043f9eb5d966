package openai

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/gin-gonic/gin"
	"github.com/klauspost/compress/zstd"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/pack"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// A stored response holds the whole conversation that it answers, so that it depends on no other one: earlier ones may be deleted, or be too old.

// storedForm is the first byte of a stored response: what follows is the conversation and the response, both packed, and the memory of its tokens.
const storedForm = 1

// maxStored bounds what is packed and unpacked. Conversations are as long as prompts may be, and what is escaped in JSON is several times as long.
const maxStored = 8 * body.MaxTextBytes

// packed is a text that is kept compressed.
func packed(text []byte) ([]byte, error) {
	if len(text) > maxStored {
		return nil, inference.Invalid("store", "%d bytes are more than the %d that are stored of a response: send store false", len(text), maxStored)
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return w.EncodeAll(text, binary.AppendUvarint(nil, uint64(len(text)))), w.Close()
}

// unpacked undoes packed. claim is asked before so much memory is taken.
func unpacked(b []byte, claim func(int64) error) ([]byte, error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > maxStored {
		return nil, errors.New("a stored response is damaged")
	}
	if err := claim(int64(size)); err != nil {
		return nil, err
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxStored))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out, err := r.DecodeAll(b[n:], make([]byte, 0, size))
	if err == nil && uint64(len(out)) != size {
		err = errors.New("a stored response is damaged")
	}
	return out, err
}

// packItems packs a conversation.
func packItems(items []item) ([]byte, error) {
	text, err := json.Marshal(items)
	if err != nil {
		return nil, err
	}
	return packed(text)
}

// packResponse makes what is stored of a response.
func packResponse(o *responseObject, input, memory []byte) ([]byte, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	object, err := packed(text)
	if err != nil {
		return nil, err
	}
	e := pack.Encoder{B: []byte{storedForm}}
	e.Bytes(input)
	e.Bytes(object)
	e.Bytes(memory)
	return e.B, nil
}

// storedResponse is a response that was stored.
type storedResponse struct {
	input  []byte // JSON
	object json.RawMessage
	memory *inference.Memory
	size   int // of the JSON

	byID map[string]item // its items, once one of them was referred to
}

func unpackResponse(b []byte, claim func(int64) error) (out *storedResponse, err error) {
	d := pack.NewDecoder(b)
	if d.Byte() != storedForm {
		d.Fail()
	}
	input, object, memory := d.Bytes(), d.Bytes(), d.Bytes()
	if err := d.End(); err != nil {
		return nil, err
	}
	out = &storedResponse{}
	if out.input, err = unpacked(input, claim); err != nil {
		return nil, err
	}
	if out.object, err = unpacked(object, claim); err != nil {
		return nil, err
	}
	out.size = len(out.input) + len(out.object)
	out.memory, err = inference.DecodeMemory(memory)
	return out, err
}

// items are what the response answers; those that have no id get one.
func (r *storedResponse) items(id string) ([]item, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(r.input, &list); err != nil {
		return nil, err
	}
	out, err := parseItems(list)
	for i := range out {
		if out[i].ID == "" {
			out[i].ID = fmt.Sprintf("%s%si%02d", itemPrefixes[out[i].Type], answerOf(id), i)
		}
	}
	return out, err
}

// output are what the response consists of.
func (r *storedResponse) output() ([]item, error) {
	var object struct {
		Output []json.RawMessage `json:"output"`
	}
	if err := json.Unmarshal(r.object, &object); err != nil {
		return nil, err
	}
	return parseItems(object.Output)
}

// item is the one with an id; those of the output come first. All of them are read once: a request may refer to many, or to one many times.
func (r *storedResponse) item(response, id string) (found item, ok bool, err error) {
	if r.byID == nil {
		output, err := r.output()
		if err != nil {
			return item{}, false, err
		}
		input, err := r.items(response)
		if err != nil {
			return item{}, false, err
		}
		r.byID = map[string]item{}
		for _, i := range slices.Concat(output, input) {
			if _, twice := r.byID[i.ID]; !twice {
				r.byID[i.ID] = i
			}
		}
	}
	found, ok = r.byID[id]
	return found, ok, nil
}

// conversation is what was said up to and with the response.
func (r *storedResponse) conversation() ([]item, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(r.input, &list); err != nil {
		return nil, err
	}
	items, err := parseItems(list)
	if err != nil {
		return nil, err
	}
	output, err := r.output()
	return append(items, output...), err
}

func parseItems(list []json.RawMessage) ([]item, error) {
	var out []item
	for i, raw := range list {
		one, ok, err := parseItem(fmt.Sprintf("stored item %d", i), raw)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, one)
		}
	}
	return out, nil
}

// maxReferred bounds how many responses one request may refer to.
const maxReferred = 64

// storedResponses reads what a caller has stored, each response once for a request.
type storedResponses struct {
	service  *Service
	call     inference.Call
	read     map[string]*storedResponse
	referred int // bytes of the items that were referred to
}

func (s *Service) storedResponses(c inference.Call) *storedResponses {
	return &storedResponses{service: s, call: c, read: map[string]*storedResponse{}}
}

func (s *storedResponses) get(id string) (*storedResponse, error) {
	if r := s.read[id]; r != nil {
		return r, nil
	}
	content, err := s.service.Core.Response(s.call.Request.Context(), s.call.Owner, id, s.call.Claim.Take)
	if err != nil {
		return nil, err
	}
	r, err := unpackResponse(content, s.call.Claim.Take)
	if err == nil {
		s.read[id] = r
	}
	return r, err
}

// unknownResponse says that a response is not there, if that is why there is none.
func unknownResponse(err error, param, code, id string) error {
	if runs.KindOf(err) != runs.KindNotFound {
		return err
	}
	return &inference.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Param: param, Code: code,
		Message: fmt.Sprintf("Response %.80q was not found: it was not stored, is deleted or too old, or is another key's.", id),
	}
}

// previous is the response that a request goes on from.
func (s *storedResponses) previous(id string) (*storedResponse, error) {
	r, err := s.get(id)
	if err != nil {
		return nil, unknownResponse(err, "previous_response_id", "previous_response_not_found", id)
	}
	return r, nil
}

// item is what a reference means.
func (s *storedResponses) item(at, id string) (item, error) {
	unknown := &inference.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Param: at, Code: "item_not_found",
		Message: fmt.Sprintf("%s: item %.80q was not found: items of stored responses can be referred to.", at, id),
	}
	key := answerOf(id)
	if key == "" {
		return item{}, unknown
	}
	if len(s.read) >= maxReferred && s.read[responsePrefix+key] == nil {
		return item{}, inference.Invalid(at, "a request may refer to items of %d responses", maxReferred)
	}
	r, err := s.get(responsePrefix + key)
	if runs.KindOf(err) == runs.KindNotFound {
		return item{}, unknown
	}
	if err != nil {
		return item{}, err
	}
	found, ok, err := r.item(responsePrefix+key, id)
	switch {
	case err != nil:
		return item{}, err
	case !ok:
		return item{}, unknown
	}
	s.referred += found.bytes()
	return found, nil
}

// stored is the response that a path names.
func (s *Service) stored(c inference.Call) (id string, r *storedResponse, err error) {
	id = c.Param("response")
	r, err = s.storedResponses(c).get(id)
	return id, r, unknownResponse(err, "response_id", "response_not_found", id)
}

func (s *Service) getResponse(c inference.Call) error {
	if !slices.Contains([]string{"", "false"}, c.Query("stream")) {
		return inference.Unsupported("stream", "a stored response is given whole")
	}
	_, r, err := s.stored(c)
	if err != nil {
		return err
	}
	return c.Send(http.StatusOK, r.object)
}

func (s *Service) deleteResponse(c inference.Call) error {
	id := c.Param("response")
	if err := s.Core.DeleteResponse(c.Request.Context(), c.Owner, id); err != nil {
		return unknownResponse(err, "response_id", "response_not_found", id)
	}
	return c.Send(http.StatusOK, gin.H{"id": id, "object": "response", "deleted": true})
}

// cancelResponse refuses: what could be cancelled is not served.
func (s *Service) cancelResponse(c inference.Call) error {
	if _, _, err := s.stored(c); err != nil {
		return err
	}
	return inference.Invalid("response_id", "the response is complete: only one that was made in the background can be cancelled, and none is here; a stream ends with its connection")
}

// maxListed bounds the items of one page, as at OpenAI.
const maxListed = 100

// listInput gives what a response answers, a page at a time.
func (s *Service) listInput(c inference.Call) error {
	limit := 20
	if text := c.Query("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxListed {
			return inference.Invalid("limit", "%.40q is not between 1 and %d", text, maxListed)
		}
	}
	order := c.DefaultQuery("order", "desc")
	if order != "asc" && order != "desc" {
		return inference.Invalid("order", "%.40q is not asc or desc", order)
	}
	id, r, err := s.stored(c)
	if err != nil {
		return err
	}
	items, err := r.items(id)
	if err != nil {
		return err
	}
	if order == "desc" {
		slices.Reverse(items)
	}
	if after := c.Query("after"); after != "" {
		at := slices.IndexFunc(items, func(i item) bool { return i.ID == after })
		if at < 0 {
			return inference.Invalid("after", "%.80q is not the id of an item of the response", after)
		}
		items = items[at+1:]
	}
	more := len(items) > limit
	items = items[:min(limit, len(items))]
	out := struct {
		Object string `json:"object"`
		Data   []item `json:"data"`
		First  string `json:"first_id"`
		Last   string `json:"last_id"`
		More   bool   `json:"has_more"`
	}{Object: "list", Data: items, More: more}
	if len(items) > 0 {
		out.First, out.Last = items[0].ID, items[len(items)-1].ID
	} else {
		out.Data = []item{}
	}
	return c.Send(http.StatusOK, out)
}
