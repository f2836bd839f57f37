#include "sharded/ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t ledger_hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

void ledger_seal(struct ledger_record *record, uint64_t members) {
    const struct ledger_entry *entry = &record->entry;
    uint64_t hash = LEDGER_HASH;
    hash = ledger_hash(hash, &entry->operation, sizeof entry->operation);
    hash = ledger_hash(hash, &entry->dtype, sizeof entry->dtype);
    hash = ledger_hash(hash, entry->group, strlen(entry->group) + 1);
    hash = ledger_hash(hash, entry->what, strlen(entry->what) + 1);
    record->common = hash;
    /* the splits of an all-to-all are compared pair by pair, not here */
    int64_t count = entry->operation == COLLECTIVE_ALL_TO_ALL ? 0 : entry->count;
    hash = ledger_hash(hash, &count, sizeof count);
    record->whole = ledger_hash(hash, &members, sizeof members);
}

bool ledger_agrees(const struct ledger_record *records, const bool *known, int world) {
    const struct ledger_record *first = NULL;
    for (int r = 0; r < world; r++) {
        if (!known[r])
            continue;
        if (first == NULL)
            first = &records[r];
        int64_t leader = records[r].leader;
        if (records[r].common != first->common || (known[leader] && records[r].whole != records[leader].whole))
            return false;
    }
    return true;
}

char *ledger_ranks_text(char *out, size_t size, const bool *in, int world) {
    int listed = 0;
    for (int r = 0; r < world; r++)
        listed += in[r];
    size_t used = (size_t)snprintf(out, size, "rank%s", listed == 1 ? "" : "s");
    const char *separator = " ";
    for (int r = 0; r < world && used < size; r++) {
        if (!in[r])
            continue;
        int last = r;
        while (last + 1 < world && in[last + 1])
            last++;
        if (last == r)
            used += (size_t)snprintf(out + used, size - used, "%s%d", separator, r);
        else
            used +=
                (size_t)snprintf(out + used, size - used, "%s%d%s%d", separator, r, last > r + 1 ? "-" : ", ", last);
        separator = ", ";
        r = last;
    }
    return out;
}

/* How many ranks hold a record like records[r]: by what the world shares, or by what the group shares and its count. */
static int votes(const struct ledger_record *records, const bool *known, int world, int r, bool group) {
    int count = 0;
    for (int i = 0; i < world; i++)
        count += known[i] && records[i].common == records[r].common &&
                 (!group || records[i].entry.count == records[r].entry.count);
    return count;
}

/* The lowest rank of the largest side among `in`; -1 if `in` is empty. */
static int largest_side(const struct ledger_record *records, const bool *known, const bool *in, int world, bool group) {
    int best = -1, best_votes = 0;
    for (int r = 0; r < world; r++) {
        int count = in[r] ? votes(records, known, world, r, group) : 0;
        if (count > best_votes) {
            best = r;
            best_votes = count;
        }
    }
    return best;
}

static const char *difference(const struct ledger_entry *a, const struct ledger_entry *b) {
    if (a->operation != b->operation || strcmp(a->what, b->what) != 0)
        return "left a collective out or has one too many";
    if (strcmp(a->group, b->group) != 0)
        return "takes another group";
    if (a->dtype != b->dtype)
        return "takes another type";
    if (a->count != b->count)
        return "takes another count";
    return "takes other members into the group";
}

/* Fills the fault: `deviates` are at fault, `agrees` do what is expected. */
static void accuse(const struct ledger_record *records, const bool *deviates, const bool *agrees, int world,
                   int expected, struct board_fault *out) {
    *out = (struct board_fault){.kind = FAULT_ORDER, .rank = -1, .expected = records[expected].entry};
    for (int r = 0; r < world; r++) {
        if (!deviates[r])
            continue;
        if (out->rank < 0)
            out->rank = r;
        if (out->ranks < (int)(sizeof out->deviating / sizeof *out->deviating))
            out->deviating[out->ranks++] = r;
    }
    out->entry = records[out->rank].entry;
    char who[96], others[96], call[256], wanted[256];
    ledger_ranks_text(who, sizeof who, deviates, world);
    ledger_ranks_text(others, sizeof others, agrees, world);
    bool one = strchr(others, 's') == NULL;
    snprintf(out->text, sizeof out->text, "%s call%s %s where %s call%s %s (collective %" PRId64 "): rank %d %s", who,
             out->ranks == 1 ? "s" : "", board_entry_text(call, sizeof call, &out->entry), others, one ? "s" : "",
             board_entry_text(wanted, sizeof wanted, &out->expected), out->entry.sequence, out->rank,
             difference(&out->entry, &out->expected));
}

/* Splits the ranks of `in` by whether they do as rank `expected` does. */
static bool split(const struct ledger_record *records, const bool *in, int world, int expected, bool group,
                  bool *deviates, bool *agrees) {
    bool any = false;
    for (int r = 0; r < world; r++) {
        bool same = group ? records[r].whole == records[expected].whole : records[r].common == records[expected].common;
        agrees[r] = in[r] && same;
        deviates[r] = in[r] && !same;
        any |= deviates[r];
    }
    return any;
}

static bool judge_world(const struct ledger_record *records, const bool *known, int world, bool *deviates, bool *agrees,
                        struct board_fault *out) {
    int expected = largest_side(records, known, known, world, false);
    if (expected < 0 || !split(records, known, world, expected, false, deviates, agrees))
        return false;
    accuse(records, deviates, agrees, world, expected, out);
    return true;
}

static bool judge_groups(const struct ledger_record *records, const bool *known, int world, bool *in, bool *deviates,
                         bool *agrees, struct board_fault *out) {
    for (int leader = 0; leader < world; leader++) {
        for (int r = 0; r < world; r++)
            in[r] = known[r] && records[r].leader == leader;
        int expected = largest_side(records, known, in, world, true);
        if (expected >= 0 && split(records, in, world, expected, true, deviates, agrees)) {
            accuse(records, deviates, agrees, world, expected, out);
            return true;
        }
    }
    return false;
}

/* Ranks that say they are in a group whose lowest rank says something else. */
static bool judge_leaders(const struct ledger_record *records, const bool *known, int world, bool *deviates,
                          bool *agrees, struct board_fault *out) {
    int expected = -1;
    for (int r = 0; r < world; r++) {
        int leader = (int)records[r].leader;
        deviates[r] = known[r] && known[leader] && records[r].whole != records[leader].whole;
        agrees[r] = false;
        if (deviates[r] && expected < 0)
            expected = leader;
    }
    if (expected < 0)
        return false;
    agrees[expected] = true;
    accuse(records, deviates, agrees, world, expected, out);
    return true;
}

void ledger_judge(const struct ledger_record *records, const bool *known, int world, int self, int other,
                  struct board_fault *out) {
    bool *flags = calloc((size_t)world * 3, sizeof *flags);
    if (flags == NULL) {
        *out = (struct board_fault){.kind = FAULT_ORDER, .rank = other, .ranks = 1, .deviating = {other}};
        snprintf(out->text, sizeof out->text, "the collectives of ranks %d and %d differ", self, other);
        return;
    }
    bool *in = flags, *deviates = flags + world, *agrees = flags + 2 * (size_t)world;
    if (!judge_world(records, known, world, deviates, agrees, out) &&
        !judge_groups(records, known, world, in, deviates, agrees, out) &&
        !judge_leaders(records, known, world, deviates, agrees, out)) {
        int low = self < other ? self : other, high = self < other ? other : self;
        memset(deviates, 0, (size_t)world * sizeof *deviates);
        memset(agrees, 0, (size_t)world * sizeof *agrees);
        deviates[high] = true;
        agrees[low] = true;
        accuse(records, deviates, agrees, world, low, out);
    }
    free(flags);
}

/* splits[i][0][j]: i sends to j; splits[j][1][i]: j expects from i. */
static int64_t sends(const int64_t *splits, int size, int i, int j) {
    return splits[(int64_t)i * 2 * size + j];
}

static int64_t expects(const int64_t *splits, int size, int j, int i) {
    return splits[(int64_t)j * 2 * size + size + i];
}

static int misfits(const int64_t *splits, int size, int who) {
    int count = 0;
    for (int j = 0; j < size; j++) {
        count += sends(splits, size, who, j) != expects(splits, size, j, who);
        count += j != who && sends(splits, size, j, who) != expects(splits, size, who, j);
    }
    return count;
}

static void accuse_split(const int64_t *splits, const int *member, int size, int who, int from, int to,
                         const struct ledger_entry *entry, struct board_fault *out) {
    int64_t sent = sends(splits, size, from, to), wanted = expects(splits, size, to, from);
    *out = (struct board_fault){.kind = FAULT_ORDER, .rank = member[who], .ranks = 1, .deviating = {member[who]}};
    out->entry = out->expected = *entry;
    out->entry.count = who == from ? sent : wanted;
    out->expected.count = who == from ? wanted : sent;
    snprintf(out->text, sizeof out->text,
             "rank %d sends %" PRId64 " elements to rank %d, which expects %" PRId64
             ", in all_to_all(%s, %s) at %s (collective %" PRId64 "): rank %d takes another split",
             member[from], sent, member[to], wanted, entry->group, entry->what, entry->site, entry->sequence,
             member[who]);
}

bool ledger_splits_fit(const int64_t *splits, const int *member, int size, const struct ledger_entry *entry,
                       struct board_fault *out) {
    int who = -1, most = 0;
    for (int i = 0; i < size; i++) {
        int count = misfits(splits, size, i);
        if (count > most) {
            most = count;
            who = i;
        }
    }
    if (who < 0)
        return true;
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            if (sends(splits, size, i, j) == expects(splits, size, j, i))
                continue;
            if (most == 1) /* one pair, two sides: the sender's count is named */
                who = i;
            if (who == i || who == j) {
                accuse_split(splits, member, size, who, i, j, entry, out);
                return false;
            }
        }
    return false;
}
