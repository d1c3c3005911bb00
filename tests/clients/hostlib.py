"""Plumbing of a host: environment, JSON event lines, a small record store, the HTTP endpoint. The
framework's part is in host_langgraph.py; README.md lists the environment variables and the event lines."""
from __future__ import annotations

import contextvars, datetime as dt, json, logging, os, signal, sys, tempfile, threading, time, traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

os.environ.setdefault("LANGSMITH_TRACING", "false")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")

from agent_wait import BaseAnnounce, EntryPoint, Question, WaitPolicy, WebhookAnnounce, publish

E = os.environ.get
INTAKE_URL, INTAKE_SECRET = E("INTAKE_URL", ""), E("INTAKE_SECRET")
STATE = E("HOST_STATE") or tempfile.mkdtemp(prefix="aw-host-")
NAIVE = E("HOST_NAIVE") == "1"          # seed-like: hand every answer to the framework, check nothing first
LOCKED = E("HOST_NO_LOCK") != "1"       # 1 = let two answers for one thread race
QUESTIONS = int(E("HOST_QUESTIONS", "1"))  # parallel questions per thread
os.makedirs(STATE, exist_ok=True)


def _json_env(name, default):
    v = E(name)
    return default if v is None else json.loads(v)


def _dur(v):  # "3" -> 3 (seconds), "P3D" -> "P3D", "" -> None
    return None if not v else (int(v) if v.isdigit() else v)


POLICY = WaitPolicy(
    timeout=_dur(E("HOST_TIMEOUT", "P3D")), default=_json_env("HOST_DEFAULT", {"action": "reject"}),
    answer_ttl=_dur(E("HOST_ANSWER_TTL", "")), allowed_actions=tuple(E("HOST_ACTIONS", "approve,reject").split(",")),
    tags=_json_env("HOST_TAGS", {"approver_group": "finance"}), correlation=_json_env("HOST_CORRELATION", None))

# ---------------------------------------------------------------- events
_out_lock = threading.Lock()


def emit(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, "ts": round(time.time(), 3), **fields}, default=str)
    with _out_lock:
        sys.stdout.write(line + "\n"); sys.stdout.flush()


class _AnnounceErrors(logging.Handler):
    """WebhookAnnounce never raises: its failures exist only as log records."""

    failed = threading.local()

    def emit(self, record):
        self.failed.n = getattr(self.failed, "n", 0) + 1
        exc = record.exc_info[1] if record.exc_info else None
        emit("error", where="announce", message=record.getMessage(), detail=str(exc) if exc else None)


_h = _AnnounceErrors(); _h.setLevel(logging.WARNING)
logging.getLogger("agent_wait").addHandler(_h)
logging.getLogger("agent_wait").propagate = False


class AskedLine(BaseAnnounce):
    """Prints the `asked` line before the webhook goes out, so that it precedes any answer."""
    name = "asked-line"

    def __init__(self, host): super().__init__(); self.host = host

    def deliver(self, e, transition):
        again = self.host.store.mark_published(e.thread_id, e.question_id)
        emit("asked", thread_id=e.thread_id, question_id=e.question_id, event_id=e.event_id, question=e.question,
             expires_at=e.expires_at, default=e.default, republished=again)


# ---------------------------------------------------------------- side effects of the tool body
THREAD: contextvars.ContextVar = contextvars.ContextVar("thread_id", default=None)
_eff_lock = threading.Lock()


def effect(**what: Any) -> None:
    """Called by the tool body: the thing that must happen once per approval."""
    time.sleep(float(E("HOST_BODY_SECONDS", "0")))
    with _eff_lock, open(f"{STATE}/effects.jsonl", "a") as f:
        f.write(json.dumps({"thread_id": THREAD.get(), **what}) + "\n")


def effects(thread_id: str) -> int:
    try:
        with _eff_lock, open(f"{STATE}/effects.jsonl") as f:
            return sum(json.loads(l)["thread_id"] == thread_id for l in f)
    except FileNotFoundError:
        return 0


# ---------------------------------------------------------------- records: what was asked and answered, per thread
class Store:
    def __init__(self):
        self.path, self.lock, self.d = f"{STATE}/threads.json", threading.Lock(), {}
        if os.path.exists(self.path):
            with open(self.path) as f: self.d = json.load(f)

    def _save(self):
        tmp = self.path + ".tmp"
        with open(tmp, "w") as f: json.dump(self.d, f, default=str)
        os.replace(tmp, self.path)

    def get(self, t): return self.d.get(t)

    def asked(self, t, questions: list[Question]):
        with self.lock:
            r = self.d.setdefault(t, {"asked": {}, "pending": [], "answered": {}, "published": [], "held": {}, "extra": {}, "output": None})
            for q in questions:
                r["asked"][q.question_id] = {"question": q.question, "policy": q.policy.to_dict(), "source": q.source}
            r["pending"] = [q.question_id for q in questions]
            self._save()

    def update(self, t, **kw):
        with self.lock:
            self.d[t].update(kw); self._save()

    def answered(self, t, answers):
        with self.lock:
            self.d[t]["answered"].update(answers); self.d[t]["held"] = {}; self._save()

    def mark_published(self, t, q):
        with self.lock:
            p = self.d[t]["published"]
            again = q in p
            if not again: p.append(q)
            self._save()
            return again


# ---------------------------------------------------------------- the host
class Host:
    """A framework host fills in: run(thread, input), resume(thread, {id: answer}), publish, questions_in, output."""
    framework = "?"
    needs_all_answers = False   # Pydantic AI refuses a partial set of answers
    null_is_no_answer = False   # Strands takes a null answer for "not answered"

    def __init__(self):
        self.store, self.locks, self.glock = Store(), {}, threading.Lock()
        self.fail_first = int(E("HOST_FAIL_FIRST", "0"))

    def lock(self, t):
        if not LOCKED: return threading.RLock()
        with self.glock: return self.locks.setdefault(t, threading.RLock())

    def pending(self, t): return set((self.store.get(t) or {}).get("pending", ()))

    def announce(self): return [AskedLine(self), WebhookAnnounce(INTAKE_URL, secret=INTAKE_SECRET.encode() if INTAKE_SECRET else None)]

    def announced(self, t, send):
        """publish_interrupts()/publish() never raise for a failed webhook: count the log records instead."""
        _h.failed.n = 0
        envs = send()
        emit("announced", thread_id=t, question_ids=[e.question_id for e in envs], ok=_h.failed.n == 0)
        return envs

    def after(self, t, result):
        """Record first, then (outside the lock) publish or report. Returns what is left to do."""
        qs = self.questions_in(result)
        self.store.asked(t, qs)
        if not qs:
            out = self.output(result)
            self.store.update(t, output=out)
            return lambda: emit("result", thread_id=t, output=out, body_runs=effects(t))
        return lambda: self.announced(t, lambda: self.publish(result, t, self.announce(), reply_to=self.reply_to))

    def start(self, t, inp):
        with self.lock(t):
            if self.pending(t):  # a redelivered start: asking again would make a second question
                todo = lambda: self.republish(t)
            else:
                THREAD.set(t)
                todo = self.after(t, self.run(t, inp))
        todo()

    def republish(self, t):
        r = self.store.get(t)
        qs = [Question(q, r["asked"][q]["question"], WaitPolicy.from_dict(r["asked"][q]["policy"]), source=r["asked"][q]["source"])
              for q in r["pending"]]
        return self.announced(t, lambda: publish(qs, t, self.announce(), reply_to=self.reply_to))

    def answer(self, m, headers):
        t, q, a = m["thread_id"], m["question_id"], m["answer"]
        with self.lock(t):
            r = self.store.get(t)
            if r is None:
                emit("error", where="answer", reason="unknown-thread", thread_id=t, question_id=q)
                return 404, {"status": "unknown-thread"}
            if not NAIVE:
                if q not in r["asked"]:
                    emit("error", where="answer", reason="unknown-question", thread_id=t, question_id=q)
                    return 404, {"status": "unknown-question"}
                if q not in self.pending(t) or q in r["held"]:
                    first = r["answered"].get(q, r["held"].get(q))
                    emit("duplicate-ignored", thread_id=t, question_id=q, answer=a, first_answer=first, same=first == a, body_runs=effects(t))
                    return 200, {"status": "duplicate-ignored", "same": first == a}
                if a is None and self.null_is_no_answer:
                    emit("error", where="answer", reason="null-answer", thread_id=t, question_id=q)
                    return 422, {"status": "null-answer"}
            given = {**r["held"], q: a}
            if self.needs_all_answers and not NAIVE and set(given) < self.pending(t):
                self.store.update(t, held=given)
                emit("held", thread_id=t, question_id=q, answer=a, waiting_for=sorted(self.pending(t) - set(given)))
                return 202, {"status": "held"}
            before, was_pending = effects(t), q in self.pending(t)
            THREAD.set(t)
            try:
                result = self.resume(t, given)
            except self.duplicate_errors as e:
                if was_pending: raise
                emit("duplicate-ignored", thread_id=t, question_id=q, answer=a, detail=f"{type(e).__name__}: {e}", body_runs=effects(t))
                return 200, {"status": "duplicate-ignored"}
            todo = self.after(t, result)
            if NAIVE and not was_pending and effects(t) == before:
                emit("duplicate-ignored", thread_id=t, question_id=q, answer=a, detail="the framework ran nothing", body_runs=before)
                todo = lambda: None
            else:
                self.store.answered(t, given)
                emit("resumed", thread_id=t, question_id=q, answer=a, valid_until=m.get("valid_until"), headers=headers)
        todo()
        return 200, {"status": "resumed"}

    duplicate_errors: tuple = ()


def rfc3339(s):
    v = dt.datetime.fromisoformat(s.replace("Z", "+00:00").replace("z", "+00:00"))
    if v.tzinfo is None: raise ValueError("no zone")
    return v


def serve(host: Host) -> None:
    class H(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def log_message(self, *a): pass

        def reply(self, code, doc):
            b = json.dumps(doc, default=str).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json"); self.send_header("Content-Length", str(len(b)))
            self.end_headers(); self.wfile.write(b)

        def bad(self, code, reason, **kw):
            emit("error", where="http", reason=reason, **kw); self.reply(code, {"status": reason})

        def do_GET(self):
            if self.path == "/healthz": return self.reply(200, {"ok": True, "framework": host.framework})
            if self.path == "/state":
                return self.reply(200, {t: {"pending": sorted(host.pending(t)), "answered": r["answered"], "held": r["held"], "output": r["output"], "body_runs": effects(t)} for t, r in list(host.store.d.items())})
            self.reply(404, {"status": "not-found"})

        def do_POST(self):
            try:
                if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                    raw = b""
                    while n := int(self.rfile.readline().split(b";")[0], 16): raw += self.rfile.read(n); self.rfile.readline()
                    self.rfile.readline()
                else:
                    raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    m = json.loads(raw)
                    if not isinstance(m, dict): raise ValueError("not an object")
                except ValueError as e:
                    return self.bad(400, "bad-json", detail=str(e)[:200])
                t = m.get("thread_id")
                if not isinstance(t, str) or not t: return self.bad(400, "bad-thread-id", detail=repr(t)[:200])
                if self.path == "/republish":
                    if host.store.get(t) is None: return self.bad(404, "unknown-thread", thread_id=t)
                    return self.reply(200, {"republished": [e.question_id for e in host.republish(t)]})
                if "question_id" not in m:  # the seed's one `if`: no question_id = a start
                    host.start(t, m.get("input") or {}); return self.reply(200, {"status": "started", "pending": sorted(host.pending(t))})
                if "answer" not in m: return self.bad(400, "no-answer", thread_id=t, question_id=m["question_id"])
                if host.fail_first > 0:
                    host.fail_first -= 1
                    return self.bad(503, "told-to-fail", thread_id=t, question_id=m["question_id"])
                time.sleep(float(E("HOST_DELAY", "0")))
                if m.get("valid_until") is not None:
                    try: over = rfc3339(m["valid_until"]) <= dt.datetime.now(dt.timezone.utc)
                    except (ValueError, AttributeError): return self.bad(400, "bad-valid-until", thread_id=t, question_id=m["question_id"], valid_until=m["valid_until"])
                    if over: return self.bad(410, "answer-expired", thread_id=t, question_id=m["question_id"], valid_until=m["valid_until"])
                keep = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "accept-encoding", "accept")}
                self.reply(*host.answer(m, keep))
            except (BrokenPipeError, ConnectionError):
                emit("error", where="http", reason="client-went-away")
            except Exception as e:
                emit("error", where="framework", reason=type(e).__name__, message=str(e)[:500], trace=traceback.format_exc(limit=-3)[-700:])
                try: self.reply(500, {"status": "error", "type": type(e).__name__, "message": str(e)[:500]})
                except OSError: pass

    class Srv(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256
        allow_reuse_address = True

    if not INTAKE_URL: sys.exit("INTAKE_URL is not set")
    bind = E("HOST_BIND", "127.0.0.1")
    srv = Srv((bind, int(E("HOST_PORT", "0"))), H)
    host.reply_to = EntryPoint("http", E("HOST_REPLY_URL") or f"http://{bind}:{srv.server_address[1]}/answers")
    signal.signal(signal.SIGTERM, lambda *a: os._exit(0))
    threading.Thread(target=srv.serve_forever, daemon=True).start()
    emit("listening", framework=host.framework, port=srv.server_address[1], reply_to=host.reply_to.address, state=STATE)
    spec = E("HOST_START", "1")
    base = E("HOST_THREAD", "order-4471")
    starts = json.loads(spec) if spec.startswith("[") else [{"thread_id": base if i == 0 else f"{base}-{i}"} for i in range(int(spec))]
    for s in starts:
        try:
            host.start(s["thread_id"], s.get("input") or {})
        except Exception as e:
            emit("error", where="start", thread_id=s.get("thread_id"), reason=type(e).__name__, message=str(e)[:500])
    try:
        while True: time.sleep(3600)
    except KeyboardInterrupt:
        pass
