#!/usr/bin/env escript
%% SPDX-License-Identifier: MIT
%% What is sent comes back. The client has a process for each connection, all at once, with one
%% message of 64 octets under way on each, and prints the round trips per second of all together.
%%
%%   echo.erl server PORT
%%   echo.erl client PORT CONNECTIONS SECONDS
-mode(compile).

-define(SIZE, 64).

main(["server", Port]) ->
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port),
        [binary, {ip, {127, 0, 0, 1}}, {active, false}, {nodelay, true}, {backlog, 512}]),
    accept(Listener);
main(["client", Port, Connections, Seconds]) ->
    Parent = self(),
    Count = list_to_integer(Connections),
    Target = list_to_integer(Port),
    lists:foreach(fun(_) -> spawn_link(fun() -> client(Parent, Target) end) end, lists:seq(1, Count)),
    Clients = [receive {connected, Client} -> Client end || _ <- lists:seq(1, Count)],
    Start = now_us(),
    End = Start + round(list_to_float(Seconds) * 1.0e6),
    lists:foreach(fun(Client) -> Client ! {until, End} end, Clients),
    Trips = lists:sum([receive {done, Client, N} -> N end || Client <- Clients]),
    io:format("~.1f~n", [Trips * 1.0e6 / (now_us() - Start)]).

now_us() ->
    erlang:monotonic_time(microsecond).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Server = spawn(fun() -> receive yours -> serve(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Server),
    Server ! yours,
    accept(Listener).

serve(Socket) ->
    ok = inet:setopts(Socket, [{active, once}]),
    receive
        {tcp, Socket, Data} ->
            ok = gen_tcp:send(Socket, Data),
            serve(Socket);
        {tcp_closed, Socket} ->
            ok
    end.

client(Parent, Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {nodelay, true}]),
    Parent ! {connected, self()},
    receive
        {until, End} -> Parent ! {done, self(), trips(Socket, End, 0)}
    end.

%% Each message differs from the one before: an answer that is lost or repeated does not match.
trips(Socket, End, N) ->
    Data = <<N:(?SIZE * 8)>>,
    ok = gen_tcp:send(Socket, Data),
    {ok, Data} = gen_tcp:recv(Socket, ?SIZE),
    case now_us() < End of
        true -> trips(Socket, End, N + 1);
        false -> N + 1
    end.
