package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// A row costs what it costs however little is in it, and a busy run brings many operations to the database at once, with consecutive ranks, most of them with their results. Such pairs go into
// one row together, a block: what a pair takes in the database is then mostly its bytes. In a block are only pairs whose key is made of parent and rank, so that the place of a key is
// known, and whose payloads are not in the journal. Blocks do not overlap, and a record is in a block or in a row, never in both. All records of a collection can leave the blocks of a parent
// together, and their payloads can be given up; for any other change the block is taken apart into rows first, which nobody but tests has asked for so far.
const (
	minBlock      = 4  // pairs; fewer have rows
	maxBlock      = 64 // pairs: reading one of them reads all
	maxBlockBytes = 128 << 10
	maxBlockRank  = 1 << 62

	blockColumns  = "parent, first, last, hosted, guested, heads, host_payloads, guest_payloads, head_sum, host_sum, guest_sum"
	putBlockText  = "INSERT INTO tinsmith_blocks (" + blockColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	getBlockText  = "SELECT " + blockColumns + " FROM tinsmith_blocks WHERE parent = ? AND first = ?"
	delBlockText  = "DELETE FROM tinsmith_blocks WHERE parent = ? AND first = ?"
	delBlocksText = "DELETE FROM tinsmith_blocks WHERE parent = ?"
	emptyText     = delBlocksText + " AND hosted = 0 AND guested = 0"
	hostsGoText   = "UPDATE tinsmith_blocks SET hosted = 0, host_payloads = NULL, host_sum = 0 * host_sum WHERE parent = ?"
	guestsGoText  = "UPDATE tinsmith_blocks SET guested = 0, guest_payloads = NULL, guest_sum = 0 * guest_sum WHERE parent = ?"
	hostsEmptied  = "UPDATE tinsmith_blocks SET host_payloads = NULL, host_sum = 0 * host_sum + 1 WHERE parent = ? AND first >= ? AND last < ? AND host_payloads IS NOT NULL"
	guestsEmptied = "UPDATE tinsmith_blocks SET guest_payloads = NULL, guest_sum = 0 * guest_sum + 1 WHERE parent = ? AND first >= ? AND last < ? AND guest_payloads IS NOT NULL"
	overlapText   = "SELECT first, last FROM tinsmith_blocks WHERE parent = ?" + overlapping
	overlapping   = " AND first > ? AND first <= ? AND last >= ?" // see overlap
	ownRowsText   = "SELECT id FROM tinsmith_records WHERE collection = ? AND id >= ? AND id <= ?"
)

// overlap gives the arguments of overlapping for ranks from … to, both in it. The first one bounds what is looked at: a block is not long.
func overlap(from, to int64) (after, upTo, reaching int64) { return max(from, 0) - maxBlock, to, from }

// blockTable makes the table.
func (d database) blockTable(ctx context.Context) error {
	text := "CREATE TABLE IF NOT EXISTS tinsmith_blocks (parent " + d.name + " NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, hosted BIGINT NOT NULL, guested BIGINT NOT NULL, heads " + d.blob +
		" NOT NULL, host_payloads " + d.blob + ", guest_payloads " + d.blob + ", head_sum BIGINT, host_sum BIGINT, guest_sum BIGINT, PRIMARY KEY (parent, first))"
	_, err := d.writer.ExecContext(ctx, text)
	return err
}

// block is such a row: pairs with the ranks from first on.
type block struct {
	parent          string
	first           int64
	hosted, guested bool // whether the records of the one and of the other collection are there
	pairs           []pair
}

type pair struct{ host, guest Record }

func (b *block) last() int64 { return b.first + int64(len(b.pairs)) - 1 }

// placedKey is the key of a record that can be in a block.
func placedKey(parent string, rank int64) string { return parent + ":" + strconv.FormatInt(rank, 10) }

// placeOf takes such a key apart.
func placeOf(key string) (parent string, rank int64, ok bool) {
	cut := strings.LastIndexByte(key, ':')
	if cut < 0 {
		return "", 0, false
	}
	rank, err := strconv.ParseInt(key[cut+1:], 10, 64)
	var digits [20]byte
	if err != nil || rank < 0 || rank >= maxBlockRank || string(strconv.AppendInt(digits[:0], rank, 10)) != key[cut+1:] {
		return "", 0, false
	}
	return key[:cut], rank, true
}

// paired tells whether a collection is one of those two.
func paired(collection string) bool { return collection == hosts || collection == guests }

// blocks takes out of rows the pairs that go into blocks.
func blocks(rows []rowChange) (packed []block, rest []rowChange) {
	type candidate struct {
		parent string
		rank   int64
		bytes  int
		row    int
	}
	var list []candidate
	for i, x := range rows {
		if x.guest == nil {
			continue
		}
		host, guest := &x.change.record, &x.guest.record
		parent, rank, ok := placeOf(x.key.Key)
		bytes := len(host.Value) + len(host.Payload) + len(guest.Value) + len(guest.Payload)
		if ok && parent == host.Parent && rank == host.Rank && host.Ref == (Ref{}) && guest.Ref == (Ref{}) && bytes <= maxBlockBytes/minBlock {
			list = append(list, candidate{parent, rank, bytes, i})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(strings.Compare(a.parent, b.parent), cmp.Compare(a.rank, b.rank))
	})
	gone := make([]bool, len(rows))
	for len(list) > 0 {
		n, bytes := 1, list[0].bytes
		for n < len(list) && n < maxBlock && list[n].parent == list[0].parent && list[n].rank == list[n-1].rank+1 && bytes+list[n].bytes <= maxBlockBytes {
			bytes += list[n].bytes
			n++
		}
		if n >= minBlock {
			b := block{parent: list[0].parent, first: list[0].rank, hosted: true, guested: true, pairs: make([]pair, n)}
			for i, c := range list[:n] {
				b.pairs[i], gone[c.row] = pair{rows[c.row].change.record, rows[c.row].guest.record}, true
			}
			packed = append(packed, b)
		}
		list = list[n:]
	}
	if packed == nil {
		return nil, rows
	}
	rest = make([]rowChange, 0, len(rows))
	for i, x := range rows {
		if !gone[i] {
			rest = append(rest, x)
		}
	}
	return packed, rest
}

// heads are the parts of the records that are always read.
func (b *block) heads() []byte {
	var e pack.Encoder
	size := 0
	for i := range b.pairs {
		size += len(b.pairs[i].host.Value) + len(b.pairs[i].guest.Value) + 4*binary.MaxVarintLen32
	}
	e.B = make([]byte, 0, size)
	for i := range b.pairs {
		for _, r := range []*Record{&b.pairs[i].host, &b.pairs[i].guest} {
			e.Int(r.Count)
			e.Bytes(r.Value)
		}
	}
	return e.B
}

// payloads are those of one of the two collections; nil if there are none.
func (b *block) payloads(collection string) []byte {
	var e pack.Encoder
	some, size := false, 0
	for i := range b.pairs {
		size += len(b.pairs[i].of(collection).Payload) + binary.MaxVarintLen32
	}
	e.B = make([]byte, 0, size)
	for i := range b.pairs {
		p := b.pairs[i].of(collection).Payload
		e.Bytes(p)
		some = some || p != nil
	}
	if !some {
		return nil
	}
	return e.B
}

func (p *pair) of(collection string) *Record {
	if collection == hosts {
		return &p.host
	}
	return &p.guest
}

// decodeBlock fills in the pairs of a block up to a last rank. The records refer to the bytes. Payloads that are not given are left out.
func (b *block) decode(last int64, heads, hostPayloads, guestPayloads []byte) error {
	n := last - b.first + 1
	if n < 1 || n > maxBlock {
		return fmt.Errorf("%w: a block of %d pairs", ErrCorrupt, n)
	}
	b.pairs = make([]pair, n)
	head, payloads := pack.NewDecoder(heads), map[string]*pack.Decoder{}
	for collection, bytes := range map[string][]byte{hosts: hostPayloads, guests: guestPayloads} {
		if bytes != nil {
			payloads[collection] = pack.NewDecoder(bytes)
		}
	}
	for i := range b.pairs {
		rank := b.first + int64(i)
		for _, collection := range []string{hosts, guests} {
			r := b.pairs[i].of(collection)
			*r = Record{Collection: collection, Parent: b.parent, Rank: rank, Key: placedKey(b.parent, rank), Count: head.Int(), Value: head.Bytes()}
			if d := payloads[collection]; d != nil {
				r.Payload = d.Bytes()
			}
		}
	}
	err := head.End()
	for _, d := range payloads {
		if err == nil {
			err = d.End()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: a block cannot be decoded: %w", ErrCorrupt, err)
	}
	return nil
}

// blockWriter brings blocks to the database, and takes them apart.
type blockWriter struct {
	jointWriter
	set, get, drop, dropAll, empty, hostsGo, guestsGo, hostsEmpty, guestsEmpty, overlaps, ownRows driver.Stmt
	put                                                                                           driver.Stmt // of a row
}

func (j jointWriter) blocks(put driver.Stmt) blockWriter {
	return blockWriter{
		jointWriter: j, put: put, set: j.prepare(putBlockText), get: j.prepare(getBlockText), drop: j.prepare(delBlockText), dropAll: j.prepare(delBlocksText), empty: j.prepare(emptyText), hostsGo: j.prepare(hostsGoText),
		guestsGo: j.prepare(guestsGoText), hostsEmpty: j.prepare(hostsEmptied), guestsEmpty: j.prepare(guestsEmptied), overlaps: j.prepare(overlapText), ownRows: j.prepare(ownRowsText),
	}
}

// write puts a block into the database. What its records had there before goes.
func (w blockWriter) writeBlock(b *block) {
	for first := b.first; first <= b.last(); {
		// With as many digits each the order of the keys is that of the ranks.
		last := b.last()
		if next := tenfold(first); next <= last {
			last = next - 1
		}
		for _, collection := range []string{hosts, guests} {
			var own []string
			w.query(w.ownRows, func(row []driver.Value) {
				key, _ := row[0].(string)
				if parent, rank, ok := placeOf(key); ok && parent == b.parent && rank >= first && rank <= last {
					own = append(own, key)
				}
			}, collection, placedKey(b.parent, first), placedKey(b.parent, last))
			for _, key := range own {
				w.run(w.del, collection, key)
			}
		}
		first = last + 1
	}
	w.insert(b)
}

// tenfold is the least number with more digits than n.
func tenfold(n int64) int64 {
	t := int64(10)
	for t <= n {
		t *= 10
	}
	return t
}

func (w blockWriter) insert(b *block) {
	flag := map[bool]int64{true: 1}
	heads, host, guest := b.heads(), b.payloads(hosts), b.payloads(guests)
	w.run(w.set, b.parent, b.first, b.last(), flag[b.hosted], flag[b.guested], heads, host, guest, w.sums.blockHead(b.parent, b.first, b.last(), heads), w.sums.part(b.hosted, host), w.sums.part(b.guested, guest))
}

// load reads a block; nil after an error.
func (w blockWriter) load(parent string, first int64) *block {
	var b *block
	w.query(w.get, func(row []driver.Value) {
		last, _ := row[2].(int64)
		hosted, _ := row[3].(int64)
		guested, _ := row[4].(int64)
		var blobs [3][]byte
		for i := range blobs {
			v, _ := row[5+i].([]byte)
			blobs[i] = bytes.Clone(v)
		}
		b = &block{parent: parent, first: first, hosted: hosted == 1, guested: guested == 1}
		var sums [3]sum
		var err error
		for i := range sums {
			err = errors.Join(err, sums[i].Scan(row[8+i]))
		}
		err = errors.Join(
			err, w.sums.checkPart(parent, first, last, blobs[0], hosts, b.hosted, blobs[1], sums[0], sums[1]),
			w.sums.checkPart(parent, first, last, blobs[0], guests, b.guested, blobs[2], sums[0], sums[2]),
		)
		if err == nil {
			err = b.decode(last, blobs[0], blobs[1], blobs[2])
		}
		if err != nil && w.err == nil {
			w.err = err
		}
	}, parent, first)
	if w.err == nil && b == nil {
		w.err = fmt.Errorf("%w: a block of %s is gone", ErrCorrupt, parent)
	}
	if w.err != nil {
		return nil
	}
	return b
}

// unpack takes the blocks apart that hold a record which changes now. rows are all changes, with their keys in order.
func (w blockWriter) unpack(rows []rowChange) {
	for len(rows) > 0 {
		parent, rank, ok := placeOf(rows[0].key.Key)
		if !ok || !paired(rows[0].key.Collection) {
			rows = rows[1:]
			continue
		}
		ranks := []int64{rank}
		n := 1
		for ; n < len(rows) && rows[n].key.Collection == rows[0].key.Collection; n++ {
			p, r, ok := placeOf(rows[n].key.Key)
			if !ok || p != parent {
				break
			}
			ranks = append(ranks, r)
		}
		rows = rows[n:]
		slices.Sort(ranks) // the keys are in order of their digits
		type span struct{ first, last int64 }
		var found []span
		after, upTo, reaching := overlap(ranks[0], ranks[len(ranks)-1])
		w.query(w.overlaps, func(row []driver.Value) {
			first, _ := row[0].(int64)
			last, _ := row[1].(int64)
			if i, exact := slices.BinarySearch(ranks, first); exact || i < len(ranks) && ranks[i] <= last {
				found = append(found, span{first, last})
			}
		}, parent, after, upTo, reaching)
		for _, x := range found {
			w.takeApart(parent, x.first)
		}
	}
}

// takeApart gives the records of a block rows.
func (w blockWriter) takeApart(parent string, first int64) {
	b := w.load(parent, first)
	if b == nil {
		return
	}
	for i := range b.pairs {
		switch p := &b.pairs[i]; {
		case b.hosted && b.guested:
			w.writePair(&p.host, &p.guest)
		case b.hosted:
			w.rowWriter.write(w.put, &p.host)
		case b.guested:
			w.rowWriter.write(w.put, &p.guest)
		}
	}
	w.run(w.drop, parent, first)
}

// removeUnder takes all records of a parent in one of the two collections out of its blocks; both says that they go from the other one as well.
func (w blockWriter) removeUnder(k ParentKey, both bool) {
	switch {
	case !paired(k.Collection):
	case both:
		w.run(w.dropAll, k.Parent)
	case k.Collection == hosts:
		w.run(w.hostsGo, k.Parent)
		w.run(w.empty, k.Parent)
	default:
		w.run(w.guestsGo, k.Parent)
		w.run(w.empty, k.Parent)
	}
	w.jointWriter.removeUnder(k, both)
}

// release gives up the payloads of a parent's records from … to, without the last, that are in blocks.
func (w blockWriter) release(collection, parent string, from, to int64) {
	switch collection {
	case hosts:
		w.run(w.hostsEmpty, parent, from, to)
	case guests:
		w.run(w.guestsEmpty, parent, from, to)
	default:
		return
	}
	// Those that are in the range with a part of their ranks are at its ends.
	var partly []int64
	for _, edge := range []int64{from, to} {
		if edge <= 0 || edge >= maxBlockRank {
			continue
		}
		after, upTo, reaching := overlap(edge, edge)
		w.query(w.overlaps, func(row []driver.Value) {
			if first, _ := row[0].(int64); first < edge && !slices.Contains(partly, first) {
				partly = append(partly, first)
			}
		}, parent, after, upTo, reaching)
	}
	for _, first := range partly {
		b := w.load(parent, first)
		if b == nil {
			return
		}
		for i := range b.pairs {
			if r := b.pairs[i].of(collection); r.Rank >= from && r.Rank < to {
				r.Payload = nil
			}
		}
		w.run(w.drop, parent, first)
		w.insert(b)
	}
}

// inBlocks is the select of the blocks that hold records of a collection, in the columns of records: the rank of the first one as place, that of the last as amount, and no collection. It ends in a
// condition that more can follow.
func inBlocks(collection string) string {
	present, payloads, sum := "hosted", "host_payloads", "host_sum"
	if collection == guests {
		present, payloads, sum = "guested", "guest_payloads", "guest_sum"
	}
	return "SELECT '' AS collection, '' AS id, parent, first AS place, last AS amount, heads AS value, " + payloads + " AS payload, 0 AS segment, 0 AS start, 0 AS size, head_sum, " + sum + " AS payload_sum" + groupColumn +
		" FROM tinsmith_blocks WHERE " + present + " = 1"
}

// unpacked yields the records of a collection, with ranks in a range, of a row that inBlocks gave.
func unpacked(row Record, collection string, x Range, yield func(Record) error) error {
	b := block{parent: row.Parent, first: row.Rank}
	payloads := map[string][]byte{collection: row.Payload}
	if err := b.decode(row.Count, row.Value, payloads[hosts], payloads[guests]); err != nil {
		return err
	}
	for i := range b.pairs {
		if r := b.pairs[i].of(collection); x.holds(r.Rank) {
			if err := yield(*r); err != nil {
				return err
			}
		}
	}
	return nil
}
