// Package runs is the core of the gateway: sessions, runs (one LoRA adapter each), the ordered queue of operations of every run, futures, sampling
// sessions, checkpoints, ownership, usage and audit. It knows tokens and plain Go values. It knows no HTTP, no JSON or protobuf of any client, no
// text (stop strings are recognised by a StopMatcher that the caller gives per model) and no API key (callers are named by an owner string).
// It drives plugins.Backend, obtained through Backends, and keeps its state in a store.Store.
//
// # Use
//
// Open gives a Core; all its methods may be called concurrently; Close waits for what it started. Every method that acts for a client takes the owner and
// treats a foreign object as absent. Errors that a client may see are *Error values with a Kind (errors.go); everything else is a fault of the server.
//
//   - Sessions (session.go, sessionlists.go): CreateSession, Heartbeat, FinishSession, Session, Sessions, SearchSessions, AssignProject.
//   - Runs (run.go): CreateRun, CreateRunFromCheckpoint, UnloadRun, Run, Runs, RunStatuses.
//   - Operations of a run (operation.go): ForwardBackward, OptimStep, SaveWeights, SaveWeightsForSampler, SaveWeightsExternal, LoadWeights, NoteRefused.
//     Each is durable when the method returns and answers with a deterministic request id; a repeat answers with the same one.
//   - Futures (future.go, completion.go): Wait, Completions, CancelFuture. An Outcome is either a Failure or the result of its Kind.
//   - Sampling sessions (sampler.go, sample.go): CreateSampler, JoinSampler, Sampler, Sample.
//   - Direct sampling for OpenAI clients (model.go, generate.go): Resolve, ServedModels, Generate. Nothing of it is journalled.
//   - Checkpoints (checkpoint.go, copying.go, archive.go, importing.go): RunCheckpoints, Checkpoints, DeleteCheckpoint, PublishCheckpoint, SetCheckpointTTL, CopyCheckpoint,
//     WeightsInfo, ArchiveToken, OpenArchive, FileTokens, OpenFile, Import.
//   - Stored answers (responses.go): KeepsResponses, TakesResponses, KeepResponse, Response, DeleteResponse.
//   - Usage, audit, metrics (usage.go, audit.go, stats.go): Usage, StorageUsage, Audit, Stats.
//   - Backups (deletions.go): HoldDeletions. What records and files lack of each other, for a data directory that no Core uses (inventory.go, claim.go): OpenInventory.
//
// # Inside
//
// An operation of a run goes through operation.go (checked, resolved, journalled), sequencer.go (which numbers, in which order), queue.go (how much is sent ahead), execute.go and
// weights.go (the calls to the backend), and future.go (its outcome stored, its waiters woken). A sample goes through sample.go and dispatch.go instead. records.go says what is
// stored and reads it at the start; sweep.go does what time asks for; retired.go takes ended sessions out of memory and brings them back when they are named.
// held.go counts what the sessions of an owner take in memory, and apart.go keeps their large texts out of it; thin.go deletes the records of what was over long ago.
//
// Files that have a record go by deletions.go alone, which journals that before; what no record names is set aside by unclaimed.go. A checkpoint's folder says itself what its record says (description.go),
// and its files are compared with their checksums before they are given out (intact.go).
//
// # Identifiers
//
// A session has a random id S. Its n-th model is the run "S:train:n", its n-th sampler "S:sample:n". A request id is the id of its run or sampler, a colon, and the
// seq_id (0 for the creation of a run; "unload" for its end); sample i of a request is "REQUEST:i". Checkpoint paths are "tinker://RUN/KIND/NAME".
//
// # Order, repeats, failures
//
// Operations of a run execute in the order of their seq_id. A missing number is waited for (Config.GapWait) and then skipped, which is journalled; when it arrives
// later its future fails and it is never run. A number refused at submission is not waited for. A repeat of a used number with an equal request gets the same
// request id, with another request KindInvalid. A request that is well formed but wrong (shapes, ids out of vocabulary, values that are not finite, unknown loss) takes its
// place in the order and its future fails with category user. A failed creation or load fails every later operation of the run with its reason.
//
// # Loss of a backend, restart of the server
//
// Adapters live in the backend process. When it is gone, or the server was restarted, every run is rebuilt (rebuild.go, replay.go, resume.go): made from its seed or loaded from a
// recovery point (recoverypoint.go), then brought to where it was by the operations in the journal that changed it; unfinished operations run in their place among them. A finished operation keeps its
// result, a finished save is not repeated, clients only wait. Under the same arithmetic the outcome is equal bit for bit; under another one RunInfo.Inexact says so. A run whose
// journal is damaged or whose base model has other weights is marked corrupted: its unfinished futures fail with the reason and later submissions are KindNotFound naming the newest
// checkpoint. Work that crashes its backend is found and failed (blame.go), and a run whose rebuild does is given up (crashes.go). A backend that stays dead fails what waits, and nothing is ever continued with fresh weights.
package runs
