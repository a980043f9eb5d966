package hub

import (
	"context"
	"fmt"
	"net/url"
	"strings"
)

// Reference is a revision of a repository.
type Reference struct {
	Repository string // org/name, or name
	Revision   string // "" is main
}

// ParseReference reads hf://org/name[@revision].
func ParseReference(text string) (Reference, error) {
	rest, ok := strings.CutPrefix(text, "hf://")
	repository, revision, at := strings.Cut(rest, "@")
	if !ok || !Repository(repository) || at && !validRevision(revision) {
		return Reference{}, fmt.Errorf("%.200q is not hf://org/name[@revision]", text)
	}
	return Reference{repository, revision}, nil
}

// revisionState is what a hub has in one revision of a repository.
type revisionState struct {
	Commit  string // "" of a repository without one
	Private bool
	Files   []file
}

// askRevision asks a hub for the commit and all files of a revision.
func askRevision(ctx context.Context, endpoint, repository, revision string) (revisionState, error) {
	res, err := get(ctx, fmt.Sprintf("%s/api/models/%s/revision/%s?blobs=true", endpoint, repository, url.PathEscape(revision)), 0)
	if err != nil {
		return revisionState{}, err
	}
	var answer struct {
		SHA      string `json:"sha"`
		Private  bool   `json:"private"`
		Siblings []file `json:"siblings"`
	}
	if err := readJSON(res, &answer); err != nil {
		return revisionState{}, fmt.Errorf("the list of files: %w", err)
	}
	if answer.SHA != "" && !commitHash.MatchString(answer.SHA) {
		return revisionState{}, fmt.Errorf("the hub names no commit for revision %s", revision)
	}
	if len(answer.Siblings) > maxFiles {
		return revisionState{}, fmt.Errorf("%d files are more than %d", len(answer.Siblings), maxFiles)
	}
	for i, f := range answer.Siblings {
		if f.LFS != nil {
			answer.Siblings[i].Size = f.LFS.Size
		}
	}
	return revisionState{answer.SHA, answer.Private, answer.Siblings}, nil
}
