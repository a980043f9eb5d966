package cmd

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
)

// A revoked key takes along its held polls, its tokens and its links; what it had accepted goes on.
func TestRevokedKey(t *testing.T) {
	w, ann, bob, _ := keyed(t)
	theirs := ann.settle()
	archive := "/api/v1/training_runs/" + theirs.run + "/checkpoints/sampler_weights/" + theirs.name + "/archive"
	files := "/api/v1/training_runs/" + theirs.run + "/checkpoints/external_weights/" + theirs.name + "/external_weights_urls"
	trace := "/api/v1/sessions/" + theirs.session + "/trace_export"
	token := caller{w, ann.field(ann.demand(http.MethodPost, "/api/v1/auth/token", object{}), "jwt")}
	var links []string
	for who, path := range map[caller]string{ann: archive, token: trace} {
		links = append(links, strings.TrimPrefix(who.field(who.demand(http.MethodGet, path, nil), "url"), w.url))
	}
	for _, part := range strings.Split(ann.demand(http.MethodGet, files, nil), `"`) {
		if strings.HasPrefix(part, w.url) {
			links = append(links, strings.TrimPrefix(part, w.url))
		}
	}
	if len(links) < 4 {
		t.Fatalf("links %q", links)
	}
	nobody := caller{w, ""}
	for _, link := range links {
		nobody.demand(http.MethodGet, link, nil)
	}
	if again := token.field(token.demand(http.MethodPost, "/api/v1/auth/token", object{}), "jwt"); again != token.key {
		t.Errorf("a token became another one: %s", again)
	}
	if status, answer := token.send(http.MethodDelete, "/api/v1/auth/apikey/me", nil); status != http.StatusNotFound {
		t.Errorf("a token revoked a key: %d %s", status, answer)
	}

	type poll struct{ status, marked int }
	polls := make(chan poll, 2)
	for _, c := range []caller{ann, token} {
		written := make(chan struct{})
		go func() {
			r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(written) }}),
				http.MethodPost, w.url+"/api/v1/retrieve_futures", strings.NewReader(`{"target":{"type":"sampling_session","sampling_session_id":"`+theirs.sampler+`","cloned_sampler_id":3},"prev_cursor":0}`))
			if err != nil {
				t.Error(err)
			}
			r.Header.Set("Authorization", "Bearer "+c.key)
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				polls <- poll{}
				return
			}
			defer answer.Body.Close()
			polls <- poll{answer.StatusCode, strings.Count(answer.Header.Get("WWW-Authenticate"), "invalid_token")}
		}()
		<-written
	}
	time.Sleep(100 * time.Millisecond) // most of the time the polls are held by now; where they are not, they are refused as well
	accepted := ann.field(ann.demand(http.MethodPost, "/api/v1/save_weights", object{"model_id": theirs.run, "path": "last", "seq_id": 4}), "request_id")
	if status, answer := ann.send(http.MethodDelete, "/api/v1/auth/apikey/me", nil); status != http.StatusNoContent {
		t.Fatalf("revoke: %d %s", status, answer)
	}
	for range 2 {
		if got := <-polls; got != (poll{http.StatusUnauthorized, 1}) {
			t.Errorf("a held poll ended with %+v", got)
		}
	}
	second, err := keys.Add(w.keysFile, "ann") // another key of the name brings none of it back
	w.ok(err)
	for name, c := range map[string]caller{"key": ann, "token": token} {
		for _, path := range []string{"/api/v1/sessions", "/v1/models"} {
			if status, answer := c.send(http.MethodGet, path, nil); status != http.StatusUnauthorized {
				t.Errorf("%s, %s: %d %s", name, path, status, answer)
			}
		}
		if status, answer := c.send(http.MethodPost, "/api/v1/auth/token", object{}); status != http.StatusUnauthorized {
			t.Errorf("%s is exchanged: %d %s", name, status, answer)
		}
	}
	for _, link := range links {
		if status, answer := nobody.send(http.MethodGet, link, nil); status != http.StatusForbidden {
			t.Errorf("%s: %d %.100s", link, status, answer)
		}
	}
	if out, err := w.core.Wait(t.Context(), "ann", accepted, 3*time.Minute); err != nil || out.Failure != nil {
		t.Errorf("what was accepted: %+v, %v", out, err)
	}
	bob.demand(http.MethodGet, "/v1/models", nil)
	anew := caller{w, second}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if status, answer := anew.send(http.MethodGet, "/api/v1/sessions/"+theirs.session, nil); status == http.StatusOK {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("another key of the name: %d %s", status, answer)
		}
	}
}

// A timeline that is fetched by its link counts as a list of the link's owner: while his are being made it waits, and nobody else's does.
func TestTimelinesWaitLikeLists(t *testing.T) {
	w, ann, bob, _ := keyed(t)
	fetch := func(who caller, patience time.Duration) int {
		session := who.field(who.demand(http.MethodPost, "/api/v1/create_session", object{}), "session_id")
		link := who.field(who.demand(http.MethodGet, "/api/v1/sessions/"+session+"/trace_export", nil), "url")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		answer := httptest.NewRecorder()
		w.handler.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, strings.TrimPrefix(link, w.url), nil))
		return answer.Body.Len()
	}
	if fetch(ann, time.Minute) == 0 {
		t.Error("there is no timeline")
	}
	for range 2 {
		done, err := w.core.AwaitList(t.Context(), "ann")
		if err != nil {
			t.Fatal(err)
		}
		defer done()
	}
	if n := fetch(ann, 100*time.Millisecond); n > 0 {
		t.Errorf("%d bytes came while two lists were being made", n)
	}
	if fetch(bob, time.Minute) == 0 {
		t.Error("somebody else waits too")
	}
}
