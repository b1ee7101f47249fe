// Prints objects that Tailscale's own tailnet lock creates and accepts, for the tests of linerate's
// tailnet::tka: chains of updates, signatures of node keys, and the same with bytes changed.
//
//	go run . > ../../crates/tailnet/tests/tka/vectors.json
package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"os"

	"go4.org/mem"
	"tailscale.com/tka"
	"tailscale.com/types/key"
	"tailscale.com/types/tkatype"
)

type chain struct {
	Name       string
	Checkpoint string
	Steps      []step
	Signatures []signature
	Secrets    []secret
	Renewed    []renewal
	Wrapped    []wrapped
}

// Updates that are sent together, and the resulting authority.
type step struct {
	Updates  []string
	Accepted bool
	Head     string
	Keys     []string
	Offer    []string
}

type signature struct {
	Name     string
	Node     string
	Text     string
	Accepted bool
	// The node's previous keys, for an accepted signature.
	Former []string
}

// Signatures that a node makes itself, with the key of this text, one after the other.
type renewal struct {
	Key    string
	Public string
	First  string
	Nodes  []string
	Texts  []string
}

// An auth key with a credential.
type wrapped struct {
	Text    string
	AuthKey string
	Node    string
	Signed  string
}

type secret struct {
	Secret   string
	Accepted bool
}

var (
	random  = rand.New(rand.NewSource(1))
	changes = flag.Int("changes", 8, "how often each text is changed")
)

func main() {
	flag.Parse()
	chains := []chain{straight(), forked(), wrong(), compacted()}
	must(json.NewEncoder(os.Stdout).Encode(chains))
}

// The signer with this number.
func signer(number int) key.NLPrivate {
	var signer key.NLPrivate
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(number)}, 32))
	must(signer.UnmarshalText([]byte("nlpriv:" + hex.EncodeToString(private))))
	return signer
}

func trusted(number int, votes uint) tka.Key {
	return tka.Key{Kind: tka.Key25519, Public: signer(number).Public().Verifier(), Votes: votes}
}

type lock struct {
	chain
	authority *tka.Authority
	storage   *tka.Mem
}

func begin(name string, keys ...tka.Key) *lock {
	storage := tka.ChonkMem()
	state := tka.State{
		Keys:              keys,
		DisablementValues: [][]byte{tka.DisablementKDF([]byte("secret")), tka.DisablementKDF([]byte{0})},
		StateID1:          uint64(len(name)),
		StateID2:          1 << 63,
	}
	authority, first, err := tka.Create(storage, state, signer(1))
	must(err)
	lock := &lock{authority: authority, storage: storage}
	lock.Name = name
	lock.Checkpoint = hex.EncodeToString(first.Serialize())
	for _, text := range [][]byte{[]byte("secret"), {0}, []byte("other"), nil} {
		lock.Secrets = append(lock.Secrets, secret{hex.EncodeToString(text), authority.ValidDisablement(text)})
	}
	return lock
}

// Makes updates that follow the head.
func (l *lock) make(by int, edit func(*tka.UpdateBuilder) error) []tka.AUM {
	updater := l.authority.NewUpdater(signer(by))
	must(edit(updater))
	updates, err := updater.Finalize(l.storage)
	must(err)
	return updates
}

func (l *lock) inform(texts ...[]byte) {
	var step step
	updates := make([]tka.AUM, len(texts))
	readable := true
	for i, text := range texts {
		step.Updates = append(step.Updates, hex.EncodeToString(text))
		readable = readable && updates[i].Unserialize(text) == nil
	}
	step.Accepted = readable && l.authority.Inform(l.storage, updates) == nil
	step.Head = l.authority.Head().String()
	for _, key := range l.authority.Keys() {
		step.Keys = append(step.Keys, hex.EncodeToString(key.Public))
	}
	offer, err := l.authority.SyncOffer(l.storage)
	must(err)
	_, step.Offer, err = tka.FromSyncOffer(offer)
	must(err)
	l.Steps = append(l.Steps, step)
}

func (l *lock) tell(updates []tka.AUM) {
	var texts [][]byte
	for _, update := range updates {
		texts = append(texts, update.Serialize())
	}
	l.inform(texts...)
}

func (l *lock) do(by int, edit func(*tka.UpdateBuilder) error) {
	l.tell(l.make(by, edit))
}

func straight() chain {
	lock := begin("straight", trusted(1, 2), trusted(2, 1))
	lock.do(1, func(b *tka.UpdateBuilder) error { return b.AddKey(trusted(3, 4096)) })
	lock.do(2, func(b *tka.UpdateBuilder) error { return b.SetKeyVote(trusted(3, 1).MustID(), 300) })
	lock.do(3, func(b *tka.UpdateBuilder) error {
		notes := map[string]string{"b": "1", "aa": "2", "a": "", "a name of more than twenty-three bytes": "é"}
		return b.SetKeyMeta(trusted(2, 1).MustID(), notes)
	})
	lock.do(3, func(b *tka.UpdateBuilder) error {
		must(b.AddKey(trusted(4, 1)))
		return b.RemoveKey(trusted(2, 1).MustID())
	})
	lock.sign()
	return lock.chain
}

func forked() chain {
	lock := begin("forked", trusted(1, 2), trusted(2, 1), trusted(3, 2))
	branch := func(by int, edit func(*tka.UpdateBuilder) error) []tka.AUM { return lock.make(by, edit) }
	add := func(number int) func(*tka.UpdateBuilder) error {
		return func(b *tka.UpdateBuilder) error { return b.AddKey(trusted(number, 1)) }
	}
	for round := 0; round < 12; round++ {
		var branches [][]tka.AUM
		at := 10 + 5*round
		switch round % 4 {
		case 0: // The one with more votes wins.
			branches = [][]tka.AUM{branch(2, add(at)), branch(1, add(at+1))}
		case 1: // Equal votes: the lowest hash.
			branches = [][]tka.AUM{branch(1, add(at)), branch(3, add(at+1)), branch(3, add(at+2))}
		case 2: // Equal votes: the removal.
			victim := lock.authority.Keys()[3]
			out := func(b *tka.UpdateBuilder) error { return b.RemoveKey(victim.MustID()) }
			branches = [][]tka.AUM{branch(1, add(200+round)), branch(3, out)}
		case 3: // A longer one with fewer votes.
			branches = [][]tka.AUM{branch(2, func(b *tka.UpdateBuilder) error {
				must(b.AddKey(trusted(at, 1)))
				return b.AddKey(trusted(at+1, 1))
			}), branch(3, add(at+2))}
		}
		random.Shuffle(len(branches), func(i, j int) { branches[i], branches[j] = branches[j], branches[i] })
		for _, branch := range branches {
			lock.tell(branch)
		}
		// Sent again: nothing new.
		lock.tell(branches[0])
	}
	return lock.chain
}

func wrong() chain {
	lock := begin("wrong", trusted(1, 1))
	signed := func(update tka.AUM, by ...int) []byte {
		for _, by := range by {
			signatures, err := signer(by).SignAUM(update.SigHash())
			must(err)
			update.Signatures = append(update.Signatures, signatures...)
		}
		return update.Serialize()
	}
	head := func() []byte { hash := lock.authority.Head(); return hash[:] }
	added, five := trusted(4, 1), uint(5)
	lots, none := uint(4097), uint(0)
	update := func(kind tka.AUMKind) tka.AUM { return tka.AUM{MessageKind: kind, PrevAUMHash: head()} }
	add := update(tka.AUMAddKey)
	add.Key = &added
	lock.inform(signed(add))
	lock.inform(signed(add, 9))
	lock.inform(signed(add, 1, 9))
	remove := update(tka.AUMRemoveKey)
	remove.KeyID = trusted(1, 1).MustID()
	lock.inform(signed(remove, 1))
	remove.KeyID = trusted(7, 1).MustID()
	lock.inform(signed(remove, 1))
	change := update(tka.AUMUpdateKey)
	change.KeyID, change.Votes = trusted(1, 1).MustID(), &lots
	lock.inform(signed(change, 1))
	change.Votes = &none
	lock.inform(signed(change, 1))
	change.Votes = nil
	lock.inform(signed(change, 1))
	again := add
	again.Key = &tka.Key{Kind: tka.Key25519, Public: trusted(1, 1).Public, Votes: 2}
	lock.inform(signed(again, 1))
	other := add
	other.Key = &tka.Key{Kind: 2, Public: trusted(5, 1).Public, Votes: 2}
	lock.inform(signed(other, 1))
	orphan := add
	orphan.PrevAUMHash = bytes.Repeat([]byte{7}, 32)
	lock.inform(signed(orphan, 1))
	orphan.PrevAUMHash = nil
	lock.inform(signed(orphan, 1))
	both := add
	both.KeyID = trusted(1, 1).MustID()
	lock.inform(signed(both, 1))
	checkpoint := update(tka.AUMCheckpoint)
	checkpoint.State = &tka.State{
		Keys: []tka.Key{trusted(1, 1)}, DisablementValues: [][]byte{make([]byte, 32)}, StateID1: 1,
	}
	lock.inform(signed(checkpoint, 1))
	// An invalid second update rejects the first one too.
	lock.inform(signed(add, 1), signed(orphan, 1))
	for i := 0; i < 5**changes; i++ {
		lock.inform(mutated(signed(add, 1)))
	}
	// An unknown kind has no effect.
	unknown := update(77)
	lock.inform(signed(unknown, 1))
	add.PrevAUMHash = head()
	lock.inform(signed(add, 1))
	change = update(tka.AUMUpdateKey)
	change.KeyID, change.Votes = trusted(4, 1).MustID(), &five
	lock.inform(signed(change, 1, 4))
	return lock.chain
}

// A chain so long that nodes discard its beginning.
func compacted() chain {
	lock := begin("long", trusted(1, 1))
	for i := 0; i < 15; i++ {
		lock.do(1, func(b *tka.UpdateBuilder) error {
			for number := 4; number < 14; number++ {
				must(b.AddKey(trusted(number, 1)))
			}
			for number := 4; number < 14; number++ {
				must(b.RemoveKey(trusted(number, 1).MustID()))
			}
			return nil
		})
	}
	return lock.chain
}

func mutated(text []byte) []byte {
	changed := bytes.Clone(text)
	switch random.Intn(4) {
	case 0:
		changed[random.Intn(len(changed))] ^= 1 << random.Intn(8)
	case 1:
		changed[random.Intn(min(12, len(changed)))] = byte(random.Intn(256))
	case 2:
		changed = changed[:random.Intn(len(changed))]
	case 3:
		at := random.Intn(len(changed) + 1)
		changed = append(changed[:at:at], append([]byte{byte(random.Intn(256))}, changed[at:]...)...)
	}
	return changed
}

func node(number int) (key.NodePublic, []byte) {
	public := key.NodePublicFromRaw32(mem.B(bytes.Repeat([]byte{byte(number)}, 32)))
	text, err := public.MarshalBinary()
	must(err)
	return public, text
}

func (l *lock) judge(name string, number int, text tkatype.MarshaledSignature) {
	public, _ := node(number)
	details, err := l.authority.NodeKeyAuthorizedWithDetails(public, text)
	raw := public.Raw32()
	judged := signature{Name: name, Node: hex.EncodeToString(raw[:]), Text: hex.EncodeToString(text), Accepted: err == nil}
	if details != nil {
		for _, former := range details.PrevNodeKeys {
			raw := former.Raw32()
			judged.Former = append(judged.Former, hex.EncodeToString(raw[:]))
		}
	}
	l.Signatures = append(l.Signatures, judged)
}

func seal(signature tka.NodeKeySignature, by key.NLPrivate) tka.NodeKeySignature {
	text, err := by.SignNKS(signature.SigHash())
	must(err)
	signature.Signature = text
	return signature
}

func (l *lock) sign() {
	trusted, own := signer(1), signer(100)
	direct := func(number int, by key.NLPrivate, wrapping []byte) tka.NodeKeySignature {
		_, text := node(number)
		return seal(tka.NodeKeySignature{
			SigKind: tka.SigDirect, Pubkey: text, KeyID: by.KeyID(), WrappingPubkey: wrapping,
		}, by)
	}
	renewed := func(number int, inner tka.NodeKeySignature, by key.NLPrivate) tka.NodeKeySignature {
		_, text := node(number)
		return seal(tka.NodeKeySignature{SigKind: tka.SigRotation, Pubkey: text, Nested: &inner}, by)
	}
	judge := func(name string, number int, signature tka.NodeKeySignature) {
		l.judge(name, number, signature.Serialize())
	}
	wrapping := own.Public().Verifier()
	first := direct(50, trusted, wrapping)
	judge("direct", 50, first)
	judge("direct without a wrapping key", 50, direct(50, trusted, nil))
	judge("of another node", 51, first)
	judge("by a key that nobody trusts", 50, direct(50, own, nil))
	second := renewed(51, first, own)
	judge("renewed", 51, second)
	judge("renewed, for the former key", 50, second)
	judge("renewed by another key", 51, renewed(51, first, trusted))
	judge("renewed without a wrapping key", 51, renewed(51, direct(50, trusted, nil), own))
	judge("renewed what nobody trusts", 51, renewed(51, direct(50, own, wrapping), own))
	judge("renewed by a short key", 51, renewed(51, direct(50, trusted, wrapping[:31]), own))
	credential := seal(tka.NodeKeySignature{
		SigKind: tka.SigCredential, KeyID: trusted.KeyID(), WrappingPubkey: wrapping,
	}, trusted)
	judge("a credential alone", 50, credential)
	byKey := renewed(52, credential, own)
	judge("by a credential", 52, byKey)
	judge("by a credential, renewed", 53, renewed(53, byKey, own))
	kept := byKey
	kept.WrappingPubkey = signer(101).Public().Verifier()
	kept = seal(kept, own)
	judge("another wrapping key since", 53, renewed(53, kept, signer(101)))
	judge("the former wrapping key", 53, renewed(53, kept, own))
	nested := first
	nested.Nested = &credential
	judge("a direct one with another inside", 50, seal(nested, trusted))
	_, text := node(50)
	judge("renewed nothing", 50, seal(tka.NodeKeySignature{SigKind: tka.SigRotation, Pubkey: text}, own))
	judge("of no kind", 50, seal(tka.NodeKeySignature{Pubkey: text, KeyID: trusted.KeyID()}, trusted))
	long := first
	for number := 51; number < 70; number++ {
		long = renewed(number, long, own)
		judge(fmt.Sprintf("renewed %d times", number-50), number, long)
	}
	l.renew(own, first.Serialize(), 20)
	// The last one is an unreadable signature.
	l.renew(own, byKey.Serialize(), 14)
	l.wrap(credential)
	for i := 0; i < *changes; i++ {
		l.judge("changed", 50, mutated(first.Serialize()))
		l.judge("changed", 51, mutated(second.Serialize()))
		l.judge("changed", 52, mutated(byKey.Serialize()))
	}
}

// Renews a signature repeatedly.
func (l *lock) renew(by key.NLPrivate, former tkatype.MarshaledSignature, times int) {
	private, err := by.MarshalText()
	must(err)
	public, err := by.Public().MarshalText()
	must(err)
	renewal := renewal{Key: string(private), Public: string(public), First: hex.EncodeToString(former)}
	for number := 60; number < 60+times; number++ {
		public, _ := node(number)
		text, err := tka.ResignNKS(by, public, former)
		must(err)
		raw := public.Raw32()
		renewal.Nodes = append(renewal.Nodes, hex.EncodeToString(raw[:]))
		renewal.Texts = append(renewal.Texts, hex.EncodeToString(text))
		former = text
	}
	l.Renewed = append(l.Renewed, renewal)
}

func (l *lock) wrap(credential tka.NodeKeySignature) {
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{100}, 32))
	encode := base64.RawStdEncoding.EncodeToString
	text := "tskey-auth-x--TL" + encode(credential.Serialize()) + "-" + encode(private)
	authKey, _, signature, key := tka.DecodeWrappedAuthkey(text, log.Printf)
	public, _ := node(90)
	signed, err := tka.SignByCredential(key, signature, public)
	must(err)
	raw := public.Raw32()
	l.Wrapped = append(l.Wrapped, wrapped{text, authKey, hex.EncodeToString(raw[:]), hex.EncodeToString(signed)})
	l.judge("by an auth key", 90, signed)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
